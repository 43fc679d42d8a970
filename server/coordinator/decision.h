// Decisions about whole updates, from the figures of all blocks of a job: clipping by
// global norm, skipping updates whose gradient is not finite, the loss scale of the next
// step, and the sums that the optimizer asked for.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "server/optimizer/training.h"

namespace syncline {

struct Decision {
  float gradient_scale = 1;  // min(1, clip / (norm + 1e-6)), as torch's clip_grad_norm_
  bool skip = false;
  float loss_scale = 1;  // of the next step
  std::vector<double> figures = {};
};

// Gathers the figures of each step until all blocks have reported. Sums run in block
// order, so that the result does not depend on which shard owns what or reports first.
class DecisionMaker {
 public:
  // `blocks` are those that are trained; each reports 1 + `figures` numbers.
  DecisionMaker(const TrainingSettings& settings, std::set<uint32_t> blocks,
                size_t figures);

  // The decision when this was the last block of its step. Repetitions, unknown blocks
  // and figures of another number change nothing.
  std::optional<Decision> Add(uint32_t block, uint64_t step,
                              const std::vector<double>& figures);

  float loss_scale() const { return scaler_.scale; }
  uint64_t skipped() const { return skipped_; }

 private:
  using Figures = std::map<uint32_t, std::vector<double>>;  // by block

  Decision Decide(const Figures& figures);

  const TrainingSettings settings_;
  const std::set<uint32_t> blocks_;
  const size_t figures_;
  LossScalerState scaler_;
  uint64_t skipped_ = 0;
  std::map<uint64_t, Figures> steps_;
};

}  // namespace syncline
