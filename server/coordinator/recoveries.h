// What a job has recovered from: how often, from what kind of loss, and how long it stood.
// And how often it has not: it failed, and its next run began with fewer steps.
//
// A job stands from the loss of a server, or of the coordinator, until an epoch has begun
// in which everything is there again. Several losses at once are a recovery each.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "server/coordinator/views.h"

namespace syncline {

class Recoveries {
 public:
  enum class Cause { kBackup, kJournal, kCoordinator };

  // `what` names what was lost, for people. At most one of a name is under way.
  // Without a time it began at the next look.
  void Begin(Cause cause, std::string_view what, std::optional<absl::Duration> since);
  bool IsUnderWay() const { return !open_.empty(); }
  // After every input, with whether the job goes on. Returns a line for the log when it
  // does again.
  std::optional<std::string> Look(bool goes_on, absl::Duration now);

  // What it begins with is to be compared with an earlier run of its name, which had come to
  // `steps`; none: that one did not fail, or the user wants fewer.
  void Follow(const Recoveries& earlier, std::optional<uint64_t> steps);
  // The job begins with so many steps. Returns a line for the log when they are fewer.
  std::optional<std::string> BeginAt(uint64_t steps);

  // What is still under way does not show.
  RecoveryView View(absl::Duration now) const;

 private:
  struct Open {
    Cause cause = Cause::kBackup;
    std::string what;
    std::optional<absl::Duration> since;
  };
  std::vector<Open> open_;
  std::map<Cause, RecoverySums> sums_;
  std::string last_;
  std::string last_causes_;
  absl::Duration last_took_ = {};
  absl::Duration last_at_ = {};
  uint64_t earlier_steps_ = 0;
  uint64_t rollbacks_ = 0;
};

// "backup", "journal" or "coordinator", as labels of metrics have it.
std::string_view CauseName(Recoveries::Cause cause);

}  // namespace syncline
