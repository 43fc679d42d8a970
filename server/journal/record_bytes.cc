#include "server/journal/record_bytes.h"

#include <utility>
#include <variant>

#include "comm/base/limits.h"
#include "server/journal/bytes.h"

namespace syncline {
namespace {

enum class Kind : uint8_t {
  kSeed = 1,
  kStep = 2,
  kSettings = 3,
  kParting = 4,
  kBlockState = 5,
  kJobState = 6
};

// Longer bytes are not a payload. A payload holds each member's frames of a block, or a sum;
// frames are recorded only if they are shorter than the sum.
constexpr size_t kMaxPayloadBytes = size_t{kBlockElements} * sizeof(float);
constexpr uint8_t kIsParting = 1;

void PutOptions(const OptionValues& values, ByteWriter& out) {
  out.Put(static_cast<uint32_t>(values.size()));
  for (const auto& [name, value] : values) {
    out.PutString(name);
    out.Put<double>(value);
  }
}

OptionValues TakeOptions(ByteReader& in) {
  OptionValues values;
  const auto count = in.Take<uint32_t>();
  for (uint32_t i = 0; i < count && in.ok(); ++i) {
    std::string name = in.TakeString();
    values[std::move(name)] = in.Take<double>();
  }
  return values;
}

void PutNamed(const NamedOptions& named, ByteWriter& out) {
  out.PutString(named.name);
  PutOptions(named.values, out);
}

NamedOptions TakeNamed(ByteReader& in) {
  std::string name = in.TakeString();
  return {.name = std::move(name), .values = TakeOptions(in)};
}

void PutSlots(const std::vector<std::vector<std::byte>>& slots, ByteWriter& out) {
  out.Put(static_cast<uint32_t>(slots.size()));
  for (const std::vector<std::byte>& slot : slots) {
    out.PutString({reinterpret_cast<const char*>(slot.data()), slot.size()});
  }
}

std::vector<std::vector<std::byte>> TakeSlots(ByteReader& in) {
  std::vector<std::vector<std::byte>> slots;
  const auto count = in.Take<uint32_t>();
  if (!in.CanHold(count, sizeof(uint32_t))) return slots;
  for (uint32_t i = 0; i < count && in.ok(); ++i) {
    const ByteView slot = in.TakeBytes(in.Take<uint32_t>());
    slots.emplace_back(slot.begin(), slot.end());
  }
  return slots;
}

void Put(const SeedRecord& record, ByteWriter& out) {
  out.Put<uint32_t>(record.block);
  out.Put<uint64_t>(record.updates);
  PutSlots(record.state, out);
}

// Reads all but the values, which are the payload.
SeedRecord TakeSeed(ByteReader& in) {
  SeedRecord record = {.block = in.Take<uint32_t>()};
  record.updates = in.Take<uint64_t>();
  record.state = TakeSlots(in);
  return record;
}

// Writes all but the weights, which are the payload.
void Put(const BlockStateRecord& record, ByteWriter& out) {
  const BlockSnapshot& saved = *record.saved;
  out.Put<uint32_t>(record.block);
  out.Put<uint64_t>(saved.version);
  out.Put<uint64_t>(saved.updates);
  out.Put<double>(saved.accumulated_samples);
  out.Put<double>(saved.accumulated_parting_samples);
  out.Put<float>(saved.rate_factor);
  out.PutValues(saved.view);
  out.PutValues(saved.accumulator);
  PutSlots(saved.state, out);
  out.PutValues(record.factors);
}

// Reads the state of a block; only blocks with values are recorded.
BlockStateRecord TakeBlockState(ByteReader& in) {
  BlockStateRecord record = {.block = in.Take<uint32_t>()};
  BlockSnapshot saved = {.version = in.Take<uint64_t>()};
  saved.updates = in.Take<uint64_t>();
  saved.seeded = true;
  saved.accumulated_samples = in.Take<double>();
  saved.accumulated_parting_samples = in.Take<double>();
  saved.rate_factor = in.Take<float>();
  saved.view = in.TakeValues<float>();
  saved.accumulator = in.TakeValues<float>();
  saved.state = TakeSlots(in);
  record.factors = in.TakeValues<float>();
  const ByteView weights = in.TakeBytes(in.left());
  saved.weights.resize(weights.size() / sizeof(float));
  if (!saved.weights.empty()) {
    std::memcpy(saved.weights.data(), weights.data(),
                saved.weights.size() * sizeof(float));
  }
  record.saved = std::make_shared<const BlockSnapshot>(std::move(saved));
  return record;
}

void Put(const JobStateRecord& record, ByteWriter& out) {
  out.PutValues(record.memory);
  out.Put<float>(record.loss_scale);
}

JobStateRecord TakeJobState(ByteReader& in) {
  JobStateRecord record = {.memory = in.TakeValues<double>()};
  record.loss_scale = in.Take<float>();
  return record;
}

void Put(const SettingsRecord& record, ByteWriter& out) {
  const TrainingSettings& training = record.training;
  out.Put<uint64_t>(record.from);
  PutNamed({training.optimizer.name, training.optimizer.options}, out);
  out.PutString(training.optimizer.state);
  PutNamed(training.schedule, out);
  PutOptions(training.gradient, out);
  PutNamed(training.loss_scaling, out);
  out.Put<uint8_t>(training.nonfinite_steps == NonfiniteSteps::kSkip ? 1 : 0);
  out.Put<uint32_t>(training.accumulate_steps);
  out.Put<uint8_t>(training.aggregation == Aggregation::kArrival ? 1 : 0);
  PutNamed(training.mode, out);
}

SettingsRecord TakeSettings(ByteReader& in) {
  SettingsRecord record = {.training = {}, .from = in.Take<uint64_t>()};
  NamedOptions optimizer = TakeNamed(in);
  TrainingSettings& training = record.training;
  training.optimizer = {.name = std::move(optimizer.name),
                        .options = std::move(optimizer.values),
                        .state = in.TakeString()};
  training.schedule = TakeNamed(in);
  training.gradient = TakeOptions(in);
  training.loss_scaling = TakeNamed(in);
  training.nonfinite_steps =
      in.Take<uint8_t>() == 1 ? NonfiniteSteps::kSkip : NonfiniteSteps::kApply;
  training.accumulate_steps = in.Take<uint32_t>();
  training.aggregation =
      in.Take<uint8_t>() == 1 ? Aggregation::kArrival : Aggregation::kRankOrder;
  training.mode = TakeNamed(in);
  return record;
}

void Put(const ShardDecision& decision, ByteWriter& out) {
  out.Put<uint64_t>(decision.step);
  out.Put<float>(decision.gradient_scale);
  out.Put<uint8_t>(decision.verdict == ShardDecision::Verdict::kSkip ? 1 : 0);
  out.Put<float>(decision.loss_scale);
  out.Put(static_cast<uint32_t>(decision.figures.size()));
  for (const double figure : decision.figures) out.Put<double>(figure);
}

ShardDecision TakeDecision(ByteReader& in) {
  ShardDecision decision = {.step = in.Take<uint64_t>()};
  decision.gradient_scale = in.Take<float>();
  decision.verdict = in.Take<uint8_t>() == 1 ? ShardDecision::Verdict::kSkip
                                             : ShardDecision::Verdict::kApply;
  decision.loss_scale = in.Take<float>();
  const auto figures = in.Take<uint32_t>();
  if (!in.CanHold(figures, sizeof(double))) return decision;
  for (uint32_t i = 0; i < figures; ++i) decision.figures.push_back(in.Take<double>());
  return decision;
}

void Put(const StepRecord& record, ByteWriter& out) {
  out.Put<uint32_t>(record.block);
  out.Put<uint64_t>(record.step);
  Put(record.decision, out);
  out.Put<float>(record.loss_scale);
  out.Put<uint8_t>(record.arrival ? 1 : 0);
  if (record.arrival) {
    out.Put<uint64_t>(record.arrival->step);
    out.Put<uint64_t>(record.arrival->age);
  }
  out.Put(static_cast<uint32_t>(record.parts.size()));
  for (const StepRecord::Part& part : record.parts) {
    out.Put<uint32_t>(part.from.rank);
    out.Put<uint32_t>(part.from.incarnation);
    out.Put<uint32_t>(part.from.samples);
    out.Put<uint8_t>(part.from.parting ? kIsParting : 0);
    out.Put<float>(part.from.rate_factor);
    out.Put<uint32_t>(part.bytes);
  }
  out.Put<double>(record.samples);
  out.Put<double>(record.parting_samples);
  out.Put(static_cast<uint8_t>(record.holds));
  out.Put<uint32_t>(record.digest);
}

constexpr size_t kPartBytes = 21;

StepRecord TakeStep(ByteReader& in) {
  StepRecord record = {.block = in.Take<uint32_t>()};
  record.step = in.Take<uint64_t>();
  record.decision = TakeDecision(in);
  record.loss_scale = in.Take<float>();
  if (in.Take<uint8_t>() == 1) {
    const auto step = in.Take<uint64_t>();
    record.arrival = ShardApplied::Arrival{.step = step, .age = in.Take<uint64_t>()};
  }
  const auto parts = in.Take<uint32_t>();
  if (!in.CanHold(parts, kPartBytes)) return record;
  for (uint32_t i = 0; i < parts; ++i) {
    StepRecord::Part& part = record.parts.emplace_back();
    part.from.rank = in.Take<uint32_t>();
    part.from.incarnation = in.Take<uint32_t>();
    part.from.samples = in.Take<uint32_t>();
    part.from.parting = in.Take<uint8_t>() == kIsParting;
    part.from.rate_factor = in.Take<float>();
    part.bytes = in.Take<uint32_t>();
  }
  record.samples = in.Take<double>();
  record.parting_samples = in.Take<double>();
  record.holds = static_cast<StepRecord::Payload>(in.Take<uint8_t>());
  record.digest = in.Take<uint32_t>();
  return record;
}

void Put(const PartingRecord& record, ByteWriter& out) {
  out.Put<uint32_t>(record.block);
  out.Put<uint64_t>(record.step);
  out.Put<uint32_t>(record.part.from.rank);
  out.Put<uint32_t>(record.part.from.incarnation);
  out.Put<uint32_t>(record.part.from.samples);
}

PartingRecord TakeParting(ByteReader& in) {
  PartingRecord record = {.block = in.Take<uint32_t>()};
  record.step = in.Take<uint64_t>();
  record.part.from.rank = in.Take<uint32_t>();
  record.part.from.incarnation = in.Take<uint32_t>();
  record.part.from.samples = in.Take<uint32_t>();
  record.part.from.parting = true;
  return record;
}

// Returns a copy, aligned like values in memory. Null if there is no payload.
Slice TakePayload(ByteReader& in) {
  const ByteView bytes = in.TakeBytes(in.left());
  if (bytes.empty()) return {};
  const Buffer copy = Buffer::Allocate(bytes.size());
  std::memcpy(copy.data(), bytes.data(), bytes.size());
  return Slice::Of(copy);
}

}  // namespace

RecordBytes WriteRecord(const ShardRecord& record) {
  ByteWriter out;
  RecordBytes bytes;
  const auto put = [&](Kind kind, const auto& what) {
    out.Put(static_cast<uint8_t>(kind));
    out.Put<uint64_t>(record.epoch);
    Put(what, out);
  };
  if (const auto* seed = std::get_if<SeedRecord>(&record.what)) {
    put(Kind::kSeed, *seed);
    bytes.payload = seed->values;
  } else if (const auto* step = std::get_if<StepRecord>(&record.what)) {
    put(Kind::kStep, *step);
    bytes.payload = step->payload;
  } else if (const auto* parting = std::get_if<PartingRecord>(&record.what)) {
    put(Kind::kParting, *parting);
    bytes.payload = parting->payload;
  } else if (const auto* block = std::get_if<BlockStateRecord>(&record.what)) {
    put(Kind::kBlockState, *block);
    const std::vector<float>& weights = block->saved->weights;
    bytes.payload = {reinterpret_cast<const std::byte*>(weights.data()),
                     weights.size() * sizeof(float), block->saved};
  } else if (const auto* job = std::get_if<JobStateRecord>(&record.what)) {
    put(Kind::kJobState, *job);
  } else {
    put(Kind::kSettings, std::get<SettingsRecord>(record.what));
  }
  bytes.head = out.bytes();
  return bytes;
}

absl::StatusOr<ShardRecord> ReadRecord(ByteView bytes) {
  ByteReader in(bytes);
  const auto kind = static_cast<Kind>(in.Take<uint8_t>());
  ShardRecord record = {.epoch = in.Take<uint64_t>()};
  bool is_known = true;
  const auto payload = [&](Slice& out) {
    is_known = in.left() <= kMaxPayloadBytes;
    if (is_known) out = TakePayload(in);
  };
  if (kind == Kind::kSeed) {
    SeedRecord seed = TakeSeed(in);
    payload(seed.values);
    record.what = std::move(seed);
  } else if (kind == Kind::kStep) {
    StepRecord step = TakeStep(in);
    payload(step.payload);
    if (step.holds > StepRecord::Payload::kSum) is_known = false;
    record.what = std::move(step);
  } else if (kind == Kind::kParting) {
    PartingRecord parting = TakeParting(in);
    payload(parting.payload);
    parting.part.bytes = static_cast<uint32_t>(parting.payload.size);
    record.what = std::move(parting);
  } else if (kind == Kind::kBlockState) {
    record.what = TakeBlockState(in);
  } else if (kind == Kind::kJobState) {
    record.what = TakeJobState(in);
    is_known = in.is_at_end();
  } else if (kind == Kind::kSettings) {
    record.what = TakeSettings(in);
    is_known = in.is_at_end();
  } else {
    is_known = false;
  }
  if (is_known && in.ok()) return record;
  return absl::DataLossError("its bytes are not a record");
}

}  // namespace syncline
