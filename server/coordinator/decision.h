// Decisions about whole updates, from the figures of all blocks of a job: clipping by
// global norm, skipping updates whose gradient is not finite, the loss scale of the next
// step, and the sums that the optimizer asked for.
#pragma once

#include <cstddef>
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

// Which blocks of a job are trained, and therefore report.
class TrainedBlocks {
 public:
  // Of the next block.
  void Add(bool is_trained) {
    trained_.push_back(is_trained);
    count_ += is_trained ? 1 : 0;
  }
  bool contains(uint32_t block) const {
    return block < trained_.size() && trained_[block];
  }
  size_t count() const { return count_; }

 private:
  std::vector<bool> trained_;
  size_t count_ = 0;
};

// Gathers the figures of each step until all blocks have reported. Sums run in block
// order, so that the result does not depend on which shard owns what or reports first.
class DecisionMaker {
 public:
  // Each of `blocks` reports 1 + `figures` numbers.
  DecisionMaker(const TrainingSettings& settings, TrainedBlocks blocks, size_t figures);

  // The decision when this was the last block of its step. Repetitions, unknown blocks
  // and figures of another number change nothing.
  std::optional<Decision> Add(uint32_t block, uint64_t step,
                              const std::vector<double>& figures);

  // What these blocks have reported is lost: they report again.
  void Forget(const std::set<uint32_t>& blocks);

  float loss_scale() const { return scaler_.scale; }
  const LossScalerState& scaler() const { return scaler_; }
  uint64_t skipped() const { return skipped_; }
  // Goes on where another one was. Before the first Add.
  void Resume(const LossScalerState& scaler, uint64_t skipped) {
    if (settings_.ScalesLoss()) scaler_ = scaler;
    skipped_ = skipped;
  }

 private:
  using Figures = std::map<uint32_t, std::vector<double>>;  // by block

  Decision Decide(const Figures& figures);

  const TrainingSettings settings_;
  const TrainedBlocks blocks_;
  const size_t figures_;
  LossScalerState scaler_;
  uint64_t skipped_ = 0;
  std::map<uint64_t, Figures> steps_;
};

}  // namespace syncline
