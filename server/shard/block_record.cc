// How a block describes its step in a record, and how it takes a step from one.
#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/base/crc32c.h"
#include "comm/base/limits.h"
#include "comm/base/status.h"
#include "server/shard/block.h"

namespace syncline {
namespace {

// Rounds up to the alignment that frames have in a record, which is that of landed
// frames.
size_t Aligned(size_t bytes) {
  return (bytes + kTileAlignment - 1) / kTileAlignment * kTileAlignment;
}

absl::Status Unfit(uint32_t block, const char* why) {
  return absl::InvalidArgumentError(
      absl::StrCat("a record of block ", block, " is invalid: ", why));
}

// Returns the epoch that the first frame states. ParseBlock checks all frames against it.
uint64_t EpochOf(ByteView frames) {
  TileHeader header;
  if (frames.size() < sizeof(header)) return 0;
  std::memcpy(&header, frames.data(), sizeof(header));
  return header.epoch;
}

}  // namespace

// Returns whether the contributions can still be recorded. Those that were added on
// arrival are left only in the sum, and delayed ones only in the compensated gradient.
bool Block::HasContributions() const {
  const auto is_there = [this](const Contribution& one) {
    const bool is_delayed = !ShownTo({one.from.rank, one.from.incarnation}).empty();
    return one.from.samples == 0 || (!one.view.tiles.empty() && !is_delayed);
  };
  return now_.departed.empty() && std::ranges::all_of(now_.contributions, is_there);
}

StepRecord Block::Record(StepRecord::Payload sum, BufferPool& pool) const {
  const Samples counted = Counted();
  StepRecord record = {.block = spec_.block,
                       .step = version_,
                       .samples = counted.regular,
                       .parting_samples = counted.parting};
  size_t bytes = 0;
  for (const Contribution& one : now_.contributions) {
    record.parts.push_back({.from = one.from});
    bytes += Aligned(one.payload.size());
  }
  for (const auto& from : now_.departed) record.parts.push_back({.from = from});
  record.holds = sum;
  if (sum == StepRecord::Payload::kNone || !HasContributions()) return record;
  if (bytes == 0) {
    record.holds = StepRecord::Payload::kNone;
  } else if (bytes < spec_.range.elements * sizeof(float)) {
    record.holds = StepRecord::Payload::kContributions;
    const Buffer all = pool.Allocate(bytes);
    size_t offset = 0;
    for (size_t i = 0; i < now_.contributions.size(); ++i) {
      const Landed& payload = now_.contributions[i].payload;
      const size_t size = payload.size();
      if (size == 0) continue;
      payload.CopyTo(all.data() + offset);
      std::memset(all.data() + offset + size, 0, Aligned(size) - size);
      record.parts[i].bytes = static_cast<uint32_t>(size);
      offset += Aligned(size);
    }
    record.payload = Slice::Of(all);
  }
  return record;
}

absl::Status Block::RestoreContributions(const StepRecord& record,
                                         const PushCodecs& codecs) {
  const bool has_frames = record.holds == StepRecord::Payload::kContributions;
  const uint64_t step = record.arrival ? record.arrival->step : record.step;
  size_t offset = 0;
  for (const StepRecord::Part& part : record.parts) {
    if (part.from.rank >= kMaxWorkers)
      return Unfit(spec_.block, "it names a rank that cannot be");
    Contribution one = {.from = part.from};
    if (part.bytes > 0) {
      const bool fits = has_frames && part.bytes <= record.payload.size &&
                        offset <= record.payload.size - part.bytes;
      if (!fits) return Unfit(spec_.block, "its parts are longer than its payload");
      one.payload = Slice{record.payload.data + offset, part.bytes, record.payload.owner};
      const ByteView frames(one.payload.body.data, part.bytes);
      SYNCLINE_ASSIGN_OR_RETURN(
          one.view,
          ParseBlock(frames, {spec_.range, step, EpochOf(frames)},
                     part.from.parting ? CodecSet{codecs.parting} : codecs.regular));
      offset += Aligned(part.bytes);
    } else if (has_frames && part.from.samples > 0) {
      return Unfit(spec_.block, "it lacks a contribution");
    }
    now_.Hold(std::move(one));
  }
  return absl::OkStatus();
}

absl::Status Block::Restore(const StepRecord& record, const PushCodecs& codecs) {
  const bool is_sum = record.holds == StepRecord::Payload::kSum;
  if (is_sum || record.holds == StepRecord::Payload::kGradient) {
    const bool fits =
        record.payload.size == spec_.range.elements * sizeof(float) &&
        reinterpret_cast<uintptr_t>(record.payload.data) % alignof(float) == 0 &&
        (!is_sum || !memory_.accumulator.empty());
    if (!fits) return Unfit(spec_.block, "its sum does not fit the block");
  }
  // The step's record contains contributions that were handed over.
  now_.Clear();
  const absl::Status restored = RestoreContributions(record, codecs);
  if (!restored.ok()) {
    now_.Clear();
    return restored;
  }
  if (is_sum) {
    std::memcpy(memory_.accumulator.data(), record.payload.data, record.payload.size);
  } else if (record.holds == StepRecord::Payload::kGradient) {
    given_ = record.payload;
  } else {
    return absl::OkStatus();
  }
  added_ = {record.samples, record.parting_samples};
  return absl::OkStatus();
}

absl::Status Block::RestoreParting(const PartingRecord& record, const Codec* codec) {
  const ShardApplied::Contributor& from = record.part.from;
  if (record.step != version_ || from.rank >= kMaxWorkers || !from.parting ||
      record.part.bytes != record.payload.size) {
    return Unfit(spec_.block, "it is not of a worker that left, or is of another step");
  }
  // A snapshot repeats contributions that are already held.
  const bool is_held =
      std::ranges::any_of(now_.contributions, [&from](const Contribution& one) {
        return one.from.rank == from.rank && one.from.incarnation == from.incarnation;
      });
  if (is_held) return absl::OkStatus();
  const ByteView frames(record.payload.data, record.payload.size);
  SYNCLINE_ASSIGN_OR_RETURN(
      BlockView view,
      ParseBlock(frames, {spec_.range, record.step, EpochOf(frames)}, {codec}));
  now_.Hold({.from = from, .payload = record.payload, .view = std::move(view)});
  return absl::OkStatus();
}

absl::Status Block::RestoreSeed(const SeedRecord& record) {
  const bool fits = record.values.size == memory_.weights.size() * sizeof(float) &&
                    (record.state.empty() || record.state.size() == memory_.state.size());
  if (!fits) return Unfit(spec_.block, "its values do not fit the block");
  BeginWithoutState();
  for (size_t i = 0; i < record.state.size(); ++i) {
    const StoredSlot& slot = memory_.state[i];
    if (record.state[i].size() != StateBytes(slot.type, spec_.range.elements)) {
      return Unfit(spec_.block, "its state does not fit the optimizer");
    }
    std::ranges::copy(record.state[i], slot.memory);
  }
  std::memcpy(memory_.weights.data(), record.values.data, record.values.size);
  updates_ = record.updates;
  SetSeeded();
  return absl::OkStatus();
}

uint32_t Block::Digest() const {
  return Crc32c(std::as_bytes(memory_.view), Crc32c(std::as_bytes(memory_.weights)));
}

}  // namespace syncline
