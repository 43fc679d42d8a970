// Estimates how far another process's clock is ahead of ours, from questions and answers,
// as in NTP (RFC 5905, section 8, for immediate answers). The peer's clock showed
// `theirs` between question and answer, so with
//   offset = theirs - (asked + answered) / 2     the error is at most (answered - asked) / 2,
// however the time divides between the two directions. Clocks drift, so the bound of a
// sample grows with its age. The sample with the smallest bound is used.
//
// Pure; times come from the caller. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>

#include "absl/time/time.h"

namespace syncline {

class ClockOffset {
 public:
  // Two quartz clocks, each 50 millionths off.
  static constexpr double kDrift = 100e-6;

  struct Reading {
    absl::Duration offset;  // theirs minus ours
    absl::Duration error;   // bound in either direction
  };

  // Question numbers must increase.
  void Asked(uint64_t question, absl::Duration now) {
    asked_.push_back({question, now});
    if (asked_.size() > kKept) asked_.pop_front();
  }

  // Records an answer. `theirs`: the peer's clock between receiving the question and
  // answering it; zero: not given.
  void Answered(uint64_t question, absl::Duration theirs, absl::Duration now) {
    while (!asked_.empty() && asked_.front().question < question) asked_.pop_front();
    if (asked_.empty() || asked_.front().question != question) return;
    const absl::Duration asked = asked_.front().at;
    asked_.pop_front();
    if (theirs == absl::ZeroDuration()) return;
    samples_.push_back({theirs - (asked + now) / 2, (now - asked) / 2, now});
    if (samples_.size() > kKept) samples_.pop_front();
  }

  // Returns nullopt before the first answer.
  std::optional<Reading> At(absl::Duration now) const {
    std::optional<Reading> best;
    for (const Sample& sample : samples_) {
      const absl::Duration error = sample.error + (now - sample.at) * kDrift;
      if (!best || error <= best->error) best = Reading{sample.offset, error};
    }
    return best;
  }

 private:
  static constexpr size_t kKept = 64;

  struct Question {
    uint64_t question;
    absl::Duration at;
  };
  struct Sample {
    absl::Duration offset;
    absl::Duration error;
    absl::Duration at;
  };
  std::deque<Question> asked_;
  std::deque<Sample> samples_;
};

}  // namespace syncline
