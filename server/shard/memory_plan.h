// How much memory a job takes on its servers, before it runs: the same bytes that the
// shards then allocate.
//
//   const MemoryJob job = {.training = settings, .tensors = tensors, .workers = 8, ...};
//   SYNCLINE_ASSIGN_OR_RETURN(const MemoryPlan plan, PlanMemory(job, placement));
//   std::cout << HumanBytes(plan.shards[0].total());
//
// Not part of it: each shard's scratch (about 300 kB), the optimizer's memory of the job
// as a whole (L-BFGS: some kB), free buffers that the pool keeps for later, and what the
// transport holds.
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
  uint64_t master = 0;                         // FP32 weights
  uint64_t view = 0;                           // the workers' FP32, where deltas go out
  std::map<std::string, uint64_t> state = {};  // of the optimizer, by slot
  uint64_t accumulator = 0;                    // sums of accumulate_steps, or on arrival
  uint64_t factors = 0;    // of tensors stepped whole (Adafactor's rows and columns)
  uint64_t published = 0;  // one encoded view of each block, on its way to the workers
  uint64_t held = 0;       // contributions that wait for the others

  uint64_t all_state() const;
  // Between two steps: what Shard::resident_bytes() says then.
  uint64_t resident() const {
    return master + view + all_state() + accumulator + factors;
  }
  // In the middle of a step, when all workers but one have pushed. Gradients that are not
  // finite are not compressed and take more.
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

// Where the blocks live: by block id of CutIntoBlocks.
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

// Fails as TrainingPlan::Create does. REQUIRES: `placement` is of the blocks of these
// tensors, each on a shard below `shards`.
absl::StatusOr<MemoryPlan> PlanMemory(const MemoryJob& job,
                                      const MemoryPlacement& placement);

}  // namespace syncline
