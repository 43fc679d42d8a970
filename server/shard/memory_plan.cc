#include "server/shard/memory_plan.h"

#include "comm/base/check.h"
#include "comm/base/status.h"
#include "comm/codec/frame.h"
#include "server/optimizer/state_storage.h"

namespace syncline {
namespace {

// Returns the bytes of one contribution. Tiles that are not finite also travel densely,
// but such a step is rare, and not every job should pay for it.
size_t PushBytes(const Transfer& push, uint32_t elements) {
  const bool is_often_dense = push.chooses() || push.what.dense_steps > 0;
  return is_often_dense ? MaxBlockBytes(push.Accepted(), elements)
                        : MaxBlockBytes(*push.codec, elements);
}

MemoryUse UseOfBlock(const MemoryJob& job, const TrainingPlan& plan,
                     const BlockRange& range) {
  const TrainedTensor& tensor = job.tensors[range.tensor];
  const TensorTransfers& transfers = job.transfers[range.tensor];
  MemoryUse use = {.elements = range.elements,
                   .master = range.elements * sizeof(float),
                   .published = MaxBlockBytes(*transfers.publish.codec, range.elements)};
  if (tensor.group.frozen) return use;
  if (transfers.publish.compresses()) use.view = range.elements * sizeof(float);
  if (job.training.NeedsAccumulator()) use.accumulator = range.elements * sizeof(float);
  const uint64_t tensor_elements = tensor.shape.elements();
  for (const StateSlot& slot : plan.optimizer(range.tensor).slots()) {
    const StateType type =
        EffectiveType(plan.state_type(range.tensor), slot.kind, tensor_elements);
    use.state[std::string(slot.name)] += StateBytes(type, range.elements);
  }
  const bool adds_on_arrival = job.training.aggregation == Aggregation::kArrival;
  const uint64_t contributions = adds_on_arrival ? 1 : job.workers;
  const SyncMode mode = job.training.sync();
  const uint64_t steps = 1 + mode.staleness;
  use.held = contributions * steps * PushBytes(transfers.push, range.elements);
  // The weights that each worker computes with.
  if (mode.compensation > 0) use.held += job.workers * use.master;
  return use;
}

uint64_t FactorBytes(const MemoryJob& job, const TrainingPlan& plan, uint32_t tensor) {
  const TensorReduction* reduction = plan.optimizer(tensor).tensor_reduction();
  if (reduction == nullptr || job.tensors[tensor].group.frozen) return 0;
  return reduction->Factors(job.tensors[tensor].shape) * sizeof(float);
}

}  // namespace

uint64_t MemoryUse::all_state() const {
  uint64_t bytes = 0;
  for (const auto& [name, slot] : state) bytes += slot;
  return bytes;
}

MemoryUse& MemoryUse::operator+=(const MemoryUse& other) {
  elements += other.elements;
  master += other.master;
  view += other.view;
  for (const auto& [name, slot] : other.state) state[name] += slot;
  accumulator += other.accumulator;
  factors += other.factors;
  published += other.published;
  held += other.held;
  return *this;
}

absl::StatusOr<MemoryPlan> PlanMemory(const MemoryJob& job,
                                      const MemoryPlacement& placement) {
  SYNCLINE_CHECK(placement.shard_of_block.size() == placement.blocks.size());
  SYNCLINE_ASSIGN_OR_RETURN(const auto plan,
                            TrainingPlan::Create(job.training, job.tensors));
  MemoryPlan memory;
  memory.tensors.resize(job.tensors.size());
  memory.shards.resize(placement.shards);
  for (size_t block = 0; block < placement.blocks.size(); ++block) {
    const BlockRange& range = placement.blocks[block];
    MemoryUse use = UseOfBlock(job, *plan, range);
    // Factors belong to the tensor and are counted where its first block is.
    if (range.first_element == 0) use.factors = FactorBytes(job, *plan, range.tensor);
    memory.tensors[range.tensor] += use;
    memory.shards[placement.shard_of_block[block]] += use;
    memory.job += use;
  }
  return memory;
}

}  // namespace syncline
