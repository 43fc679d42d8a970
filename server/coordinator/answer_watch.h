// Measures how long a question to all servers of a job has had no further answer. Thread
// safety: none.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/time/time.h"

namespace syncline {

class AnswerWatch {
 public:
  // Returns how long the question has been open without progress. `question` names it and
  // the number of open answers; empty: there is no question. `moves`: servers are seen to
  // work on it. The time since the last Look counts as `at_most` at most, so that no
  // server is blamed for a pause of the coordinator.
  absl::Duration Look(std::string question, bool moves, absl::Duration now,
                      absl::Duration at_most) {
    const absl::Duration passed = std::min(now - looked_at_.value_or(now), at_most);
    looked_at_ = now;
    const bool is_same = !moves && question == question_;
    question_ = std::move(question);
    unanswered_for_ = is_same ? unanswered_for_ + passed : absl::ZeroDuration();
    return unanswered_for_;
  }
  // Excludes the time until the next Look. Used while a server that is asked is away.
  void Pause(absl::Duration now) { looked_at_ = now; }

 private:
  std::string question_;
  absl::Duration unanswered_for_ = {};
  std::optional<absl::Duration> looked_at_;
};

}  // namespace syncline
