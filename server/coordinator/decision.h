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

// What scaling the loss has come to.
struct ScalingState {
  LossScalerState scaler = {};
  uint64_t skipped = 0;  // updates
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

  // The decision when this was the last block of its step. Repetitions, decided steps,
  // unknown blocks and figures of another number change nothing.
  std::optional<Decision> Add(uint32_t block, uint64_t step,
                              const std::vector<double>& figures);

  // What these blocks have reported is lost: they report again.
  void Forget(const std::set<uint32_t>& blocks);

  // All steps below it are decided.
  uint64_t decided() const { return decided_; }
  // Of the next step.
  const ScalingState& scaling() const { return scaling_; }
  // Of the last step that was decided here and finite, before clipping by it. Nothing in
  // jobs that do not clip by the global norm.
  std::optional<double> gradient_norm() const { return gradient_norm_; }
  // Goes on where another one was, at step `decided`. Before the first Add.
  void Resume(uint64_t decided, const ScalingState& scaling) {
    decided_ = decided;
    if (settings_.ScalesLoss()) scaling_.scaler = scaling.scaler;
    scaling_.skipped = scaling.skipped;
  }

 private:
  using Figures = std::map<uint32_t, std::vector<double>>;  // by block

  Decision Decide(const Figures& figures);

  const TrainingSettings settings_;
  const TrainedBlocks blocks_;
  const size_t figures_;
  ScalingState scaling_;
  uint64_t decided_ = 0;
  std::optional<double> gradient_norm_;
  std::map<uint64_t, Figures> steps_;
};

}  // namespace syncline
