// Decisions about whole steps, from the figures of all blocks of a job: clipping by
// global norm, and skipping steps whose gradient is not finite.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "server/coordinator/job_spec.h"

namespace syncline {

struct Decision {
  float gradient_scale = 1;
  bool skip = false;
};

// min(1, clip / (norm + 1e-6)), as torch.nn.utils.clip_grad_norm_; skip when not finite
// and the job says so.
Decision Decide(const JobSpec& spec, double square_sum, bool finite);

// Gathers the figures of each step until all blocks have reported. Sums run in block
// order, then tile order, so that the result does not depend on which shard owns what or
// reports first.
class DecisionCollector {
 public:
  explicit DecisionCollector(const JobSpec& spec);

  // The decision when this was the last block of its step. Repetitions and unknown blocks
  // change nothing.
  std::optional<Decision> Add(uint32_t block, uint64_t step,
                              const std::vector<double>& tile_square_sums, bool finite);

 private:
  struct Step {
    std::map<uint32_t, std::vector<double>> square_sums;  // by block
    bool finite = true;
  };

  const JobSpec& spec_;
  const std::vector<BlockRange> blocks_;
  std::map<uint64_t, Step> steps_;
};

}  // namespace syncline
