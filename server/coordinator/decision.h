// Decisions about the updates of a job, from the statistics of all of its blocks:
// clipping by global norm, skipping updates with non-finite gradients, the loss scale of
// the next step, and the sums that the optimizer needs.
//
// Thread safety: none.
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

// The state of loss scaling after some step.
struct ScalingState {
  LossScalerState scaler = {};
  uint64_t skipped = 0;  // number of updates skipped so far
};

// The set of blocks that are trained. Only these report statistics.
class TrainedBlocks {
 public:
  // Appends the next block.
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

// Collects the statistics of each step until all trained blocks have reported. Sums are
// made in block order, so the result does not depend on the placement of blocks or on the
// order of reports.
class DecisionMaker {
 public:
  // Each of `blocks` reports 1 + `figures` numbers; the first is the sum of squares of
  // its gradient.
  DecisionMaker(const TrainingSettings& settings, TrainedBlocks blocks, size_t figures);

  // Returns the decision if this was the last block of its step. Ignores repeated
  // reports, decided steps, unknown blocks, and reports of the wrong length.
  std::optional<Decision> Add(uint32_t block, uint64_t step,
                              const std::vector<double>& figures);

  // Forgets the reports of these blocks in all open steps: the blocks will report again.
  void Forget(const std::set<uint32_t>& blocks);

  // All steps below this one are decided.
  uint64_t decided() const { return decided_; }
  // State for the next step.
  const ScalingState& scaling() const { return scaling_; }
  // Norm over the whole gradient, before clipping, of the last finite step that was
  // decided here. Empty: none yet, or the job does not clip by global norm.
  std::optional<double> gradient_norm() const { return gradient_norm_; }
  // Continues at step `decided` with the state of a previous coordinator. REQUIRES: no
  // Add before.
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
