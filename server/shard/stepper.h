// The stepper: turns complete blocks into new weights. It knows which settings hold at
// which step, and keeps what belongs to a tensor or to the job as a whole. The shard
// decides when a step happens; the stepper, what it does.
//
// Thread safety: none; the shard owns it.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/base/buffer.h"
#include "comm/base/slab_memory.h"
#include "server/optimizer/mean.h"
#include "server/optimizer/training.h"
#include "server/shard/block.h"
#include "server/shard/shard.h"
#include "server/shard/step.h"

namespace syncline {

class Stepper {
 public:
  // `pool` and options.seed_codec outlive it. InvalidArgument as
  // TrainingPlan::Create.
  static absl::StatusOr<std::unique_ptr<Stepper>> Create(const ShardOptions& options,
                                                         BufferPool& pool);

  // Takes and touches the memory of these blocks: it may take seconds, and the step does
  // not. ResourceExhausted when the system does not give it. Once.
  absl::Status Reserve(const std::vector<ShardBlock>& blocks);
  // Zeroed memory for a block's weights, state and accumulator. REQUIRES: reserved.
  BlockMemory Allocate(const BlockRange& range);
  size_t resident_bytes() const;

  // New settings from `first_step` on, which no block has completed. They differ from the
  // old ones only in options that need no other state; InvalidArgument otherwise, and
  // then nothing changes.
  absl::Status Change(const TrainingSettings& settings, uint64_t first_step);
  // No block steps before `step` any more.
  void ForgetSettingsBefore(uint64_t step);

  bool IsFrozen(uint32_t tensor) const { return tensors_[tensor].group.frozen; }
  // Whether it is what the workers push and no weights (server/optimizer/mean.h).
  bool IsMean(uint32_t tensor) const { return TakesMean(tensors_[tensor].group); }
  // All blocks of such a tensor step together, and live here.
  bool StepsWhole(uint32_t tensor) const;
  // Whether contributions are added as they come.
  bool AddsOnArrival() const;
  // Whether `step` ends an update, or only adds to its sum.
  bool Updates(uint64_t step) const { return PlanAt(step).settings().Updates(step); }
  bool NeedsDecision(uint64_t step) const {
    return Updates(step) && PlanAt(step).NeedsDecision();
  }
  // The loss scale of the step after the last one decided; 1 without loss scaling.
  float loss_scale() const { return next_loss_scale_; }
  // That the contributions of the step under way come with. A record says it of its own.
  float contribution_scale() const { return loss_scale_; }
  void SetContributionScale(float scale) { loss_scale_ = scale; }
  // Of the job, before scales of groups and batches.
  float learning_rate(uint64_t step) const {
    return static_cast<float>(PlanAt(step).JobLearningRate(step));
  }

  void Accumulate(Block& block);
  std::vector<double> Figures(const Block& block);

  // What a decision says about the job as a whole. Before the blocks' Update; `block` is
  // one of them.
  void Prepare(const ShardDecision& decision, const Block& block);
  // Steps the blocks of one tensor, or one block alone, and returns their published views
  // in order. The caller advances the blocks: see KindAt for what happened to them.
  std::vector<Payload> Update(std::span<Block* const> blocks,
                              const ShardDecision& decision, uint64_t epoch);
  // Mode asp: steps a block with the one contribution that it holds, of `from`.
  Payload UpdateOnArrival(const Block& block, WorkerId from,
                          const ShardApplied::Arrival& arrival, uint64_t epoch);
  // The decision was carried out: contributions come with its loss scale from now on.
  void Finish() { loss_scale_ = next_loss_scale_; }
  ContributionKind KindAt(uint64_t step) const;
  // Whether a member may go without a gradient of one tensor, or give it a rate of its
  // own. An optimizer that steps in one direction for all tensors needs each of them at
  // every step: what it keeps would drift apart.
  bool TakesTensorsApart(uint64_t step) const {
    return PlanAt(step).job_reduction() == nullptr;
  }

  // What belongs to tensors and the job as a whole.
  void Save(ShardSnapshot& snapshot) const;
  void Load(const ShardSnapshot& snapshot);
  // Of a tensor that was stepped whole; otherwise empty.
  std::vector<float> FactorsOf(uint32_t tensor) const;
  void SetFactors(uint32_t tensor, std::vector<float> factors);
  const TrainingSettings& SettingsAt(uint64_t step) const {
    return PlanAt(step).settings();
  }
  // Those that the job was not declared with, with the step that they hold from, which may
  // be its first.
  std::vector<SettingsRecord> ChangesOfSettings() const;

  // The averaged weights of a block (EMA or SWA) in FP32; empty when the job keeps none.
  std::optional<Payload> EncodeAverage(const Block& block, uint64_t epoch);
  // An array of the optimizer's state in FP32; empty when there is none of that number.
  std::optional<Payload> EncodeState(const Block& block, uint32_t array, uint64_t epoch);
  // Sets it, in a block that has no values yet. REQUIRES: it has an array of that number.
  void SeedState(const Block& block, uint32_t array, const BlockView& values);

  // The published view of a block as it is.
  Payload Encode(const Block& block, uint64_t epoch);

 private:
  // Settings and the first step they hold for.
  struct Revision {
    uint64_t first_step = 0;
    std::shared_ptr<const TrainingPlan> plan = {};
    enum class Of { kJob, kUpdate } of = Of::kUpdate;  // its declaration has the former
  };
  // What belongs to a tensor as a whole.
  struct WholeTensor {
    std::vector<float> factors = {};
    std::vector<double> figures = {};
    std::vector<double> transform_figures = {};
  };

  Stepper(const ShardOptions& options, std::shared_ptr<const TrainingPlan> plan,
          BufferPool& pool);
  const TrainingPlan& PlanAt(uint64_t step) const;
  WholeTensor& WholeOf(uint32_t tensor, const TrainingPlan& plan);
  // Where a block's parts lie, one after the other; `take` is asked for each.
  BlockMemory Layout(const BlockRange& range,
                     absl::FunctionRef<std::byte*(size_t bytes)> take) const;

  const std::vector<TrainedTensor> tensors_;
  const std::vector<TensorTransfers> transfers_;
  const Codec& fp32_;
  const Checksum checksum_;
  BufferPool& pool_;
  StepPass pass_;
  std::deque<Revision> revisions_;          // in order of steps; never empty
  std::map<uint32_t, WholeTensor> wholes_;  // of tensors that were stepped whole
  std::vector<double> job_memory_;
  SlabMemory memory_;          // of all blocks
  size_t block_bytes_ = 0;     // of it that they use
  float loss_scale_ = 1;       // that contributions come with
  float next_loss_scale_ = 1;  // of the step after the decision under way
};

}  // namespace syncline
