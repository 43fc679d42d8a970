// The cost of encoding or decoding, which is measured if there is a clock.
#pragma once

#include <cstdint>

#include "absl/time/time.h"
#include "comm/base/env.h"

namespace syncline {

struct CodecCost {
  uint64_t values = 0;
  absl::Duration time = absl::ZeroDuration();

  double nanoseconds_per_value() const {
    return values == 0 ? 0
                       : absl::ToDoubleNanoseconds(time) / static_cast<double>(values);
  }
};

// Adds the time from its construction to its destruction to a cost.
class CodecTimer {
 public:
  // `clock` null: nothing is measured. Clock and cost must outlive it.
  CodecTimer(const Clock* clock, uint64_t values, CodecCost& cost)
      : clock_(clock), values_(values), cost_(cost) {
    if (clock_ != nullptr) start_ = clock_->Now();
  }
  ~CodecTimer() {
    if (clock_ == nullptr) return;
    cost_.values += values_;
    cost_.time += clock_->Now() - start_;
  }
  CodecTimer(const CodecTimer&) = delete;
  CodecTimer& operator=(const CodecTimer&) = delete;

 private:
  const Clock* const clock_;
  const uint64_t values_;
  CodecCost& cost_;
  absl::Duration start_ = absl::ZeroDuration();
};

}  // namespace syncline
