// The stepper turns complete blocks into new weights. It knows which settings hold at
// which step, and keeps the state of whole tensors and of the job. The shard decides when
// a step happens; the stepper carries it out.
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
  // `pool` and options.seed_codec must outlive it. Fails with InvalidArgument as
  // TrainingPlan::Create does.
  static absl::StatusOr<std::unique_ptr<Stepper>> Create(const ShardOptions& options,
                                                         BufferPool& pool);

  // Allocates and touches the memory of these blocks. This may take seconds, so it
  // happens here and not during a step. Fails with ResourceExhausted if the system does
  // not give the memory. Call it once.
  absl::Status Reserve(const std::vector<ShardBlock>& blocks);
  // Returns zeroed memory for a block's weights, state and accumulator. REQUIRES: Reserve
  // covered the block.
  BlockMemory Allocate(const BlockRange& range);
  size_t resident_bytes() const;

  // Sets new settings from `first_step` on, which no block has completed. They may differ
  // from the old ones only in options that need no other state. Fails with
  // InvalidArgument otherwise, and then nothing changes.
  absl::Status Change(const TrainingSettings& settings, uint64_t first_step);
  // Drops settings that only steps before `step` need. No block may make such a step any
  // more.
  void ForgetSettingsBefore(uint64_t step);

  bool IsFrozen(uint32_t tensor) const { return tensors_[tensor].group.frozen; }
  // Whether the tensor takes the mean of what workers push, which is not a gradient
  // (server/optimizer/mean.h).
  bool IsMean(uint32_t tensor) const { return TakesMean(tensors_[tensor].group); }
  // Whether all blocks of the tensor step together; they are then all on this shard.
  bool StepsWhole(uint32_t tensor) const;
  // Whether contributions are added to the sum as they come.
  bool AddsOnArrival() const;
  // Whether `step` ends an update; otherwise it only adds to its sum.
  bool Updates(uint64_t step) const { return PlanAt(step).settings().Updates(step); }
  bool NeedsDecision(uint64_t step) const {
    return Updates(step) && PlanAt(step).NeedsDecision();
  }
  // The loss scale of the step after the last decided one; 1 without loss scaling.
  float loss_scale() const { return next_loss_scale_; }
  // The loss scale of the contributions to the step under way. A replay sets it from the
  // record.
  float contribution_scale() const { return loss_scale_; }
  void SetContributionScale(float scale) { loss_scale_ = scale; }
  // The learning rate of the job, before factors of groups and batch sizes.
  float learning_rate(uint64_t step) const {
    return static_cast<float>(PlanAt(step).JobLearningRate(step));
  }

  void Accumulate(Block& block);
  std::vector<double> Figures(const Block& block);

  // Applies the part of a decision that concerns the whole job. Call it before Update of
  // the blocks, of which `block` is one.
  void Prepare(const ShardDecision& decision, const Block& block);
  // Steps the blocks of one tensor, or one block alone, and returns their published views
  // in order. The caller advances the blocks. KindAt says whether weights or only state
  // changed.
  std::vector<Payload> Update(std::span<Block* const> blocks,
                              const ShardDecision& decision, uint64_t epoch);
  // Mode asp: steps a block with its only held contribution, which is from `from`.
  Payload UpdateOnArrival(const Block& block, WorkerId from,
                          const ShardApplied::Arrival& arrival, uint64_t epoch);
  // Ends a decision: contributions come with its loss scale from now on.
  void Finish() { loss_scale_ = next_loss_scale_; }
  ContributionKind KindAt(uint64_t step) const;
  // Whether a member may push no gradient for one tensor, or give it a rate factor of its
  // own. False for optimizers that step in one direction for all tensors: they need every
  // tensor at every step, or their memory would drift apart.
  bool TakesTensorsApart(uint64_t step) const {
    return PlanAt(step).job_reduction() == nullptr;
  }

  // Save and Load copy the state of whole tensors and of the job.
  void Save(ShardSnapshot& snapshot) const;
  void Load(const ShardSnapshot& snapshot);
  // Returns the factors of a tensor that was stepped as a whole; otherwise empty.
  std::vector<float> FactorsOf(uint32_t tensor) const;
  void SetFactors(uint32_t tensor, std::vector<float> factors);
  const TrainingSettings& SettingsAt(uint64_t step) const {
    return PlanAt(step).settings();
  }
  // Returns the settings that the job was not declared with, each with the first step at
  // which it holds. That may be the job's first step.
  std::vector<SettingsRecord> ChangesOfSettings() const;

  // Encodes the averaged weights of a block (EMA or SWA) in FP32. Empty if the job keeps
  // none.
  std::optional<Payload> EncodeAverage(const Block& block, uint64_t epoch);
  // Encodes an array of the optimizer's state in FP32. Empty if there is no such array.
  std::optional<Payload> EncodeState(const Block& block, uint32_t array, uint64_t epoch);
  // Sets an array of the state, in a block that has no values yet. REQUIRES: the array
  // exists.
  void SeedState(const Block& block, uint32_t array, const BlockView& values);

  // Encodes the current published view of a block.
  Payload Encode(const Block& block, uint64_t epoch);

 private:
  // Settings, and the first step at which they hold.
  struct Revision {
    uint64_t first_step = 0;
    std::shared_ptr<const TrainingPlan> plan = {};
    // kJob: the settings that the job was declared with.
    enum class Of { kJob, kUpdate } of = Of::kUpdate;
  };
  // The state of a tensor that is stepped as a whole.
  struct WholeTensor {
    std::vector<float> factors = {};
    std::vector<double> figures = {};
    std::vector<double> transform_figures = {};
  };

  Stepper(const ShardOptions& options, std::shared_ptr<const TrainingPlan> plan,
          BufferPool& pool);
  const TrainingPlan& PlanAt(uint64_t step) const;
  WholeTensor& WholeOf(uint32_t tensor, const TrainingPlan& plan);
  // Lays out the parts of a block's memory, one after the other. Calls `take` for each.
  BlockMemory Layout(const BlockRange& range,
                     absl::FunctionRef<std::byte*(size_t bytes)> take) const;

  const std::vector<TrainedTensor> tensors_;
  const std::vector<TensorTransfers> transfers_;
  const Codec& fp32_;
  const Checksum checksum_;
  BufferPool& pool_;
  StepPass pass_;
  std::deque<Revision> revisions_;          // by first step; never empty
  std::map<uint32_t, WholeTensor> wholes_;  // tensors that were stepped as a whole
  std::vector<double> job_memory_;
  SlabMemory memory_;          // of all blocks
  size_t block_bytes_ = 0;     // used by blocks
  float loss_scale_ = 1;       // of contributions
  float next_loss_scale_ = 1;  // of the step after the decision under way
};

}  // namespace syncline
