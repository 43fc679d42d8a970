// Computes how much memory a job takes on its servers before it runs: the same bytes that
// the shards later allocate.
//
//   const MemoryJob job = {.training = settings, .tensors = tensors, .workers = 8, ...};
//   SYNCLINE_ASSIGN_OR_RETURN(const MemoryPlan plan, PlanMemory(job, placement));
//   std::cout << HumanBytes(plan.shards[0].total());
//
// The plan does not include each shard's scratch memory (about 300 kB), the optimizer's
// memory of the job as a whole (some kB with L-BFGS), free buffers that the pool keeps,
// and the buffers of the transport.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "comm/base/tiling.h"
#include "comm/compression/transfer.h"
#include "server/optimizer/training.h"

namespace syncline {

// Bytes by purpose.
struct MemoryUse {
  uint64_t elements = 0;
  uint64_t master = 0;  // FP32 weights
  // The workers' FP32 weights, if deltas are published.
  uint64_t view = 0;
  std::map<std::string, uint64_t> state = {};  // of the optimizer, by slot
  // Sums of accumulate_steps, or of aggregation on arrival.
  uint64_t accumulator = 0;
  // Factors of tensors stepped as a whole (Adafactor's rows and columns).
  uint64_t factors = 0;
  // One encoded view of each block, on its way to the workers.
  uint64_t published = 0;
  uint64_t held = 0;  // contributions that wait for the others

  uint64_t all_state() const;
  // Bytes between two steps: what Shard::resident_bytes() returns then.
  uint64_t resident() const {
    return master + view + all_state() + accumulator + factors;
  }
  // Bytes in the middle of a step, when all workers but one have pushed. Gradients that
  // are not finite are not compressed and take more.
  uint64_t total() const { return resident() + published + held; }

  MemoryUse& operator+=(const MemoryUse& other);
  bool operator==(const MemoryUse&) const = default;
};

struct MemoryJob {
  const TrainingSettings& training;
  std::span<const TrainedTensor> tensors = {};
  std::span<const TensorTransfers> transfers = {};  // in the order of the tensors
  uint32_t workers = 1;
};

// Where the blocks are, by block id of CutIntoBlocks.
struct MemoryPlacement {
  std::span<const BlockRange> blocks = {};
  std::span<const uint32_t> shard_of_block = {};
  uint32_t shards = 1;
};

struct MemoryPlan {
  std::vector<MemoryUse> tensors = {};  // in order
  std::vector<MemoryUse> shards = {};   // by number
  MemoryUse job = {};
};

// Fails as TrainingPlan::Create does. REQUIRES: `placement` covers the blocks of these
// tensors, each on a shard below `shards`.
absl::StatusOr<MemoryPlan> PlanMemory(const MemoryJob& job,
                                      const MemoryPlacement& placement);

}  // namespace syncline
