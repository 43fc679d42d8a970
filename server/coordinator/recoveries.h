// The losses that a job has recovered from: how often, with what, and how long it stood
// still. Also counts the rollbacks: the job failed, and its next run began at an earlier
// step.
//
// A job stands still from the loss of a server, or of the coordinator, until an epoch has
// begun in which all members are present again. Each of several simultaneous losses
// counts as a recovery.
//
// Thread safety: none.
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

  // Notes a loss. `what` names it for the log; a second loss of the same name is ignored
  // while the first is open. `since` is its time; empty: the time of the next Look.
  void Begin(Cause cause, std::string_view what, std::optional<absl::Duration> since);
  bool IsUnderWay() const { return !open_.empty(); }
  // Called after every input; `goes_on`: the job has all members again. Returns a line
  // for the log if that ends recoveries.
  std::optional<std::string> Look(bool goes_on, absl::Duration now);

  // Continues the counts of an earlier run of the same name, which had reached `steps`.
  // Empty: that run did not fail, or the user wants to begin earlier.
  void Follow(const Recoveries& earlier, std::optional<uint64_t> steps);
  // Notes the step that the job begins at. Returns a line for the log if it is a
  // rollback.
  std::optional<std::string> BeginAt(uint64_t steps);

  // Recoveries under way are not included.
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

// Returns the label in metrics: "backup", "journal" or "coordinator".
std::string_view CauseName(Recoveries::Cause cause);

}  // namespace syncline
