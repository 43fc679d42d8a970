// The losses that a job's workers report: the mean over all samples of the latest step, or
// of each step of a learning-rate range test.
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

  // Reports that make no sense are not the job's end: what is not finite, of no sample, or
  // beyond a range test changes nothing, and a step that is far too high is forgotten once
  // all workers go on with lower ones.
  void Add(const LossReport& report, const TrainingSettings& training);

  // By step.
  const std::map<uint64_t, Mean>& means() const { return means_; }

 private:
  const uint32_t workers_;
  std::map<uint64_t, Mean> means_;
  uint32_t older_ = 0;  // reports since the latest step began
};

}  // namespace syncline
