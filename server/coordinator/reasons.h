// Why an epoch changes, as every member of the job is told: the first few reasons and the
// number of the others. A thousand deaths at once must not make a message of a thousand
// sentences for each of those who live.
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

// What kinds of reasons there are, for counting.
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
// "begin" and so on, as labels of metrics have it.
std::string_view EpochCauseName(EpochCause cause);

class Reasons {
 public:
  void Add(EpochCause cause, std::string reason);
  void Add(Reasons more);

  bool empty() const { return shown_.empty(); }
  std::string Text() const;
  // Of all of them, also of those that the text does not show.
  const std::set<EpochCause>& causes() const { return causes_; }

 private:
  void Show(std::string reason);

  std::set<EpochCause> causes_;
  std::vector<std::string> shown_;
  size_t others_ = 0;
};

}  // namespace syncline
