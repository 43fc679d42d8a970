// How a shard keeps records of what it does, and repeats what records say.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/base/check.h"
#include "comm/base/status.h"
#include "server/shard/shard_impl.h"

namespace syncline {
namespace {

absl::Status OutOfOrder(const StepRecord& record, const std::string& why) {
  return absl::FailedPreconditionError(absl::StrCat("a record of block ", record.block,
                                                    " for step ", record.step,
                                                    " does not fit: ", why));
}

}  // namespace

std::optional<uint32_t> BlockOf(const ShardRecord& record) {
  return std::visit(
      [](const auto& what) -> std::optional<uint32_t> {
        if constexpr (requires { what.block; }) return what.block;
        return std::nullopt;
      },
      record.what);
}

// ---- Keeping ----

bool Shard::Impl::KeepsRecords() const {
  return keeps_ != Records::kNone && !is_replaying_;
}

void Shard::Impl::Keep(ShardRecord::What what) {
  ++records_;
  outputs_.push_back(ShardRecorded{
      std::make_shared<const ShardRecord>(ShardRecord{epoch_, std::move(what)})});
}

void Shard::Impl::KeepSeed(const Block& block) {
  if (!KeepsRecordsOf(block)) return;
  const auto weights = std::as_bytes(block.memory().weights);
  const Buffer values = pool_.Allocate(weights.size());
  std::ranges::copy(weights, values.data());
  SeedRecord record = {.block = block.spec().block, .values = Slice::Of(values)};
  if (block.updates() > 0) {
    record.updates = block.updates();
    record.state = block.Save().state;
  }
  Keep(std::move(record));
  NoteRecorded(block);
}

// A shard that continues from its records needs this. Other readers have the record of
// the step that it was for.
void Shard::Impl::KeepParting(const ShardMessage& message, const Block& block) {
  if (!KeepsRecordsOf(block) || keeps_ != Records::kAwaited) return;
  const MessageHeader& header = message.header;
  const Buffer frames = pool_.Allocate(message.payload.size());
  message.payload.CopyTo(frames.data());
  Keep(PartingRecord{.block = header.block,
                     .step = header.step,
                     .part = {.from = {.rank = header.rank,
                                       .incarnation = header.incarnation,
                                       .samples = header.samples,
                                       .parting = true},
                              .bytes = static_cast<uint32_t>(message.payload.size())},
                     .payload = Slice::Of(frames)});
  NoteRecorded(block);
}

void Shard::Impl::NoteRecorded(const Block& block) {
  if (keeps_ != Records::kAwaited) return;
  unsafe_[block.spec().block] = records_;
  recorded_.push_back(block.spec().block);
}

void Shard::Impl::BeginRecords(std::span<Block* const> unit,
                               const ShardDecision& decision,
                               StepRecord::Payload payload) {
  if (!KeepsRecordsOf(*unit.front())) return;
  for (Block* block : unit) {
    BegunRecord& begun = begun_.emplace_back();
    begun.record = block->Record(payload, pool_);
    begun.record.decision = decision;
    begun.record.loss_scale = stepper_->contribution_scale();
    const bool is_gradient = begun.record.holds == StepRecord::Payload::kGradient;
    if (!is_gradient && begun.record.holds != StepRecord::Payload::kSum) continue;
    const uint32_t elements = block->spec().range.elements;
    begun.sum = pool_.Allocate(elements * sizeof(float));
    if (is_gradient) {
      block->WriteSum({reinterpret_cast<float*>(begun.sum.data()), elements});
    }
  }
}

void Shard::Impl::EndRecord(const Block& block) {
  if (begun_.empty()) return;
  auto [record, sum] = std::move(begun_.front());
  begun_.pop_front();
  if (record.holds == StepRecord::Payload::kSum) {
    std::ranges::copy(std::as_bytes(block.memory().accumulator), sum.data());
  }
  if (sum.size() > 0) record.payload = Slice::Of(sum);
  record.digest = block.Digest();
  Keep(std::move(record));
  NoteRecorded(block);
}

// ---- Replay ----

absl::Status Shard::Impl::Replay(const ShardRecord& record) {
  if (!members_.empty()) {
    return absl::FailedPreconditionError(
        "a shard that has members cannot replay records");
  }
  is_replaying_ = true;
  epoch_ = record.epoch;
  if (const auto* settings = std::get_if<SettingsRecord>(&record.what)) {
    // Every segment of a journal repeats the settings, and the last segment may have been
    // torn after the first of them. Repeated settings are no later change.
    const std::vector<SettingsRecord> known = stepper_->ChangesOfSettings();
    const bool is_known =
        std::ranges::any_of(known, [settings](const SettingsRecord& one) {
          return one.from == settings->from && one.training == settings->training;
        });
    if (is_known) return absl::OkStatus();
    return stepper_->Change(settings->training, settings->from);
  }
  if (const auto* job = std::get_if<JobStateRecord>(&record.what)) {
    stepper_->Load({.job_memory = job->memory, .loss_scale = job->loss_scale});
    return absl::OkStatus();
  }
  const uint32_t id = *BlockOf(record);
  const auto found = blocks_.find(id);
  if (found == blocks_.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a record is of block ", id, ", which this shard does not have"));
  }
  Block& block = found->second;
  if (const auto* step = std::get_if<StepRecord>(&record.what)) {
    return Replay(*step, block);
  }
  if (const auto* parting = std::get_if<PartingRecord>(&record.what)) {
    return block.RestoreParting(*parting, options_.seed_codec);
  }
  if (block.seeded()) {
    return absl::FailedPreconditionError(
        absl::StrCat("block ", id, " has its first values already"));
  }
  const auto* state = std::get_if<BlockStateRecord>(&record.what);
  if (state == nullptr) return block.RestoreSeed(std::get<SeedRecord>(record.what));
  SYNCLINE_RETURN_IF_ERROR(block.Load(*state->saved));
  stepper_->SetFactors(block.spec().range.tensor, state->factors);
  return absl::OkStatus();
}

absl::Status Shard::Impl::Replay(const StepRecord& record, Block& block) {
  const uint32_t tensor = block.spec().range.tensor;
  if (stepper_->IsFrozen(tensor)) return OutOfOrder(record, "its tensor is frozen");
  if (!block.seeded()) return OutOfOrder(record, "the block has no values yet");
  if (record.step != block.version()) {
    return OutOfOrder(record, absl::StrCat("the block is at step ", block.version()));
  }
  if (replayed_.contains(record.block)) {
    return OutOfOrder(record, "an earlier record waits for the rest of its tensor");
  }
  const bool is_arrival = record.arrival && record.parts.size() == 1;
  if (mode_.is_async() ? !is_arrival : record.arrival.has_value()) {
    return OutOfOrder(record, "the job has another mode");
  }
  SYNCLINE_RETURN_IF_ERROR(
      block.Restore(record, {.regular = options_.transfers[tensor].push.Accepted(),
                             .parting = options_.seed_codec}));
  replayed_.insert(record.block);
  const std::span<Block* const> unit = UnitOf(block);
  const bool is_complete = std::ranges::all_of(unit, [&](const Block* one) {
    return one->version() == record.step && replayed_.contains(one->spec().block);
  });
  if (!is_complete) return absl::OkStatus();
  for (Block* one : unit) {
    one->SetWeights();
    replayed_.erase(one->spec().block);
  }
  StepAgain(unit, record);
  return absl::OkStatus();
}

void Shard::Impl::StepAgain(std::span<Block* const> unit, const StepRecord& record) {
  if (record.arrival) {
    const ShardApplied::Contributor& from = record.parts.front().from;
    Arrive({from.rank, from.incarnation}, *record.arrival, *unit.front());
  } else if (!stepper_->Updates(record.step)) {
    for (Block* one : unit) Accumulate(*one);
  } else if (!stepper_->NeedsDecision(record.step)) {
    Step(unit, {.step = record.step});
  } else {
    stepper_->SetContributionScale(record.loss_scale);
    const bool is_first = replayed_decision_ != record.step;
    if (is_first) stepper_->Prepare(record.decision, *unit.front());
    replayed_decision_ = record.step;
    replayed_scale_ = record.loss_scale;
    Step(unit, record.decision);
    stepper_->Finish();
  }
}

// Records do not contain members and their epoch: a commit of any epoch brings them. A
// checkpoint that was being copied is not finished.
void Shard::Impl::BeginAgain() {
  SYNCLINE_CHECK(replayed_.empty() && members_.empty());
  is_replaying_ = false;
  epoch_ = 0;
  cuts_.clear();
  outputs_.clear();
  for (const auto& [id, block] : blocks_) {
    if (stepper_->IsFrozen(block.spec().range.tensor)) continue;
    last_cut_ = std::max(last_cut_, block.version());
  }
}

}  // namespace syncline
