// What a shard did to a block, enough to do it again bit for bit, without the workers: the
// same weights, optimizer state, published view and table of what was counted.
//
// A shard gives records out when ShardOptions::records says so (`ShardRecorded`), each
// before what workers are told of it. Shard::Replay takes them in the same order:
//
//   auto shard = *Shard::Create(options, blocks, pool);  // or loaded from a cut
//   for (const ShardRecord& record : records) SYNCLINE_RETURN_IF_ERROR(shard->Replay(record));
//
// Thread safety: values; what they point to never changes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "comm/base/buffer.h"
#include "server/shard/shard.h"

namespace syncline {

// What a block began with.
struct SeedRecord {
  uint32_t block = 0;
  Slice values = {};  // FP32
  // The optimizer's state, all arrays as they are stored, after so many updates; none: zeros.
  uint64_t updates = 0;
  std::vector<std::vector<std::byte>> state = {};
};

// A step of a block, or a push's worth of one.
struct StepRecord {
  struct Part {
    ShardApplied::Contributor from = {};
    uint32_t bytes =
        0;  // of its frames in `payload`, where each begins at a multiple of 64

    bool operator==(const Part&) const = default;
  };
  // The smaller of the two: what members gave, as it landed, one after the other, or what
  // came of it in FP32: the gradient that the optimizer saw (the mean, votes counted,
  // delays made up for) or, where pushes only add to a sum, that sum.
  enum class Payload : uint8_t { kNone, kContributions, kGradient, kSum };

  uint32_t block = 0;
  uint64_t step = 0;  // the version that it had
  ShardDecision decision = {};
  float loss_scale = 1;  // that contributions came with
  std::optional<ShardApplied::Arrival> arrival = std::nullopt;  // mode asp
  std::vector<Part> parts = {};  // in rank order, those without samples included
  double samples = 0;            // behind the sum, earlier pushes included
  double parting_samples = 0;
  Payload holds = Payload::kNone;
  Slice payload = {};
  // CRC-32C of the weights, continued over the view that workers hold where deltas are
  // published: as they are afterwards.
  uint32_t digest = 0;
};

// What a worker that leaves has handed over, for a step that is not made yet: it keeps
// nothing. The step's own record has it, too.
struct PartingRecord {
  uint32_t block = 0;
  uint64_t step = 0;
  StepRecord::Part part = {};
  Slice payload = {};  // its frames
};

// The job goes by other settings from that step on.
struct SettingsRecord {
  TrainingSettings training = {};
  uint64_t from = 0;
};

// A block as it was between two steps, for one who has none of the records before
// (ShardBackUp).
struct BlockStateRecord {
  uint32_t block = 0;
  std::shared_ptr<const BlockSnapshot> saved = {};
  std::vector<float> factors = {};  // of a tensor that is stepped whole; its first block
};

// Likewise, what belongs to the job as a whole.
struct JobStateRecord {
  std::vector<double> memory = {};
  float loss_scale = 1;
};

struct ShardRecord {
  using What = std::variant<SeedRecord, StepRecord, SettingsRecord, PartingRecord,
                            BlockStateRecord, JobStateRecord>;

  uint64_t epoch = 0;
  What what = {};
};

// Nothing where it is of the shard as a whole.
std::optional<uint32_t> BlockOf(const ShardRecord& record);

}  // namespace syncline
