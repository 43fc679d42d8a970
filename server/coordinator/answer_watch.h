// How long servers have left what a job asks of all of them without a further answer.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/time/time.h"

namespace syncline {

class AnswerWatch {
 public:
  // `question` names what is asked and how many have not answered; empty: nothing is.
  // `moves`: servers are seen to work on it. A look that comes late counts as `at_most`: a
  // coordinator that was stopped itself blames nobody for that time.
  absl::Duration Look(std::string question, bool moves, absl::Duration now,
                      absl::Duration at_most) {
    const absl::Duration passed = std::min(now - looked_at_.value_or(now), at_most);
    looked_at_ = now;
    const bool is_same = !moves && question == question_;
    question_ = std::move(question);
    unanswered_for_ = is_same ? unanswered_for_ + passed : absl::ZeroDuration();
    return unanswered_for_;
  }
  // The time until the next look does not count: somebody who is asked is away.
  void Pause(absl::Duration now) { looked_at_ = now; }

 private:
  std::string question_;
  absl::Duration unanswered_for_ = {};
  std::optional<absl::Duration> looked_at_;
};

}  // namespace syncline
