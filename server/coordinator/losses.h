// The losses that the workers of a job report: the mean over all samples of the latest
// step, or of each step of a learning-rate range test.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "server/coordinator/coordinator.h"
#include "server/optimizer/training.h"

namespace syncline {

class Losses {
 public:
  struct Mean {
    double sum = 0;  // samples * loss
    double samples = 0;

    double value() const { return sum / samples; }
  };

  explicit Losses(uint32_t workers) : workers_(workers) {}

  // Adds a report. Ignores invalid ones: a loss that is not finite, zero samples, or a
  // step beyond the range test. A step that is far too high is dropped after workers have
  // reported enough lower steps.
  void Add(const LossReport& report, const TrainingSettings& training);

  // Means by step: only the latest step, except in a range test.
  const std::map<uint64_t, Mean>& means() const { return means_; }

 private:
  const uint32_t workers_;
  std::map<uint64_t, Mean> means_;
  uint32_t older_ = 0;  // reports of older steps since the latest step began
};

}  // namespace syncline
