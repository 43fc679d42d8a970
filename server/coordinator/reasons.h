// Why an epoch changes, as each member of the job is told: the first few reasons, and the
// number of the others. This bounds the message to each member, even after a thousand
// deaths at once.
//
//   Reasons reasons;
//   reasons.Add(EpochCause::kDeath, "worker 3 (host:19): its connection broke");
//   reasons.Text();  // "worker 3 ...; worker 4 ...; worker 5 ...; and 993 others"
//
// Thread safety: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace syncline {

// The kinds of reasons, for counting.
enum class EpochCause : uint8_t {
  kBegin,
  kJoin,
  kLeave,
  kDeath,
  kSettings,
  kCheckpoint,
  kServer,
  kCoordinator,
  kAnswer
};
// Returns the label in metrics, such as "begin".
std::string_view EpochCauseName(EpochCause cause);

class Reasons {
 public:
  void Add(EpochCause cause, std::string reason);
  void Add(Reasons more);

  bool empty() const { return shown_.empty(); }
  std::string Text() const;
  // Causes of all reasons, also of those that Text() does not show.
  const std::set<EpochCause>& causes() const { return causes_; }

 private:
  void Show(std::string reason);

  std::set<EpochCause> causes_;
  std::vector<std::string> shown_;
  size_t others_ = 0;
};

}  // namespace syncline
