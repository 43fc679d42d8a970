// Records say what a shard did to its blocks. They suffice to repeat it without the
// workers, bit for bit: the same weights, optimizer state, published view and counted
// contributors.
//
// A shard gives out records (`ShardRecorded`) if ShardOptions::records says so, each
// before the messages to workers that depend on it. Shard::Replay takes them in the same
// order:
//
//   auto shard = *Shard::Create(options, blocks, pool);  // or loaded from a cut
//   for (const ShardRecord& record : records) {
//     SYNCLINE_RETURN_IF_ERROR(shard->Replay(record));
//   }
//
// Thread safety: records are values; the data they point to never changes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "comm/base/buffer.h"
#include "server/shard/shard.h"

namespace syncline {

// The first values of a block.
struct SeedRecord {
  uint32_t block = 0;
  Slice values = {};  // FP32
  // The optimizer's state after `updates` updates: all arrays as they are stored. Empty:
  // zeros.
  uint64_t updates = 0;
  std::vector<std::vector<std::byte>> state = {};
};

// A step of a block. In mode asp this is one push; with accumulation, one addition to the
// sum.
struct StepRecord {
  struct Part {
    ShardApplied::Contributor from = {};
    uint32_t bytes =
        0;  // of its frames in `payload`, where each begins at a multiple of 64

    bool operator==(const Part&) const = default;
  };
  // What the payload holds. kContributions: the frames of all members as they landed, one
  // after the other. kGradient: the FP32 gradient that the optimizer saw, after
  // averaging, counting of votes and delay compensation. kSum: the accumulator after a
  // step that only adds to it. The shard chooses the smaller of contributions and result.
  enum class Payload : uint8_t { kNone, kContributions, kGradient, kSum };

  uint32_t block = 0;
  uint64_t step = 0;  // the version that the block had
  ShardDecision decision = {};
  float loss_scale = 1;  // loss scale of the contributions
  std::optional<ShardApplied::Arrival> arrival = std::nullopt;  // only in mode asp
  std::vector<Part> parts = {};  // in rank order, including those without samples
  double samples = 0;            // samples in the sum, including earlier pushes
  double parting_samples = 0;
  Payload holds = Payload::kNone;
  Slice payload = {};
  // CRC-32C of the weights after the step, continued over the view that workers hold, if
  // deltas are published.
  uint32_t digest = 0;
};

// What a leaving worker handed over for a step that is not made yet. The worker keeps no
// copy. The record of the step contains it, too.
struct PartingRecord {
  uint32_t block = 0;
  uint64_t step = 0;
  StepRecord::Part part = {};
  Slice payload = {};  // the frames
};

// The job uses other settings from step `from` on.
struct SettingsRecord {
  TrainingSettings training = {};
  uint64_t from = 0;
};

// The state of a block between two steps, for a reader that has none of the earlier
// records (ShardBackUp).
struct BlockStateRecord {
  uint32_t block = 0;
  std::shared_ptr<const BlockSnapshot> saved = {};
  // Factors of a tensor that is stepped as a whole. Only its first block has them.
  std::vector<float> factors = {};
};

// The state of the job as a whole, for the same readers.
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

// Returns the block that the record is of; nothing if it is of the shard as a whole.
std::optional<uint32_t> BlockOf(const ShardRecord& record);

}  // namespace syncline
