#include "server/shard/shard.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/base/check.h"
#include "comm/base/status.h"
#include "comm/transport/message.h"
#include "server/shard/shard_impl.h"

namespace syncline {
namespace {

std::vector<uint32_t> IdsOf(const std::vector<ShardBlock>& blocks) {
  std::vector<uint32_t> ids;
  for (const ShardBlock& one : blocks) ids.push_back(one.block);
  std::ranges::sort(ids);
  return ids;
}

}  // namespace

Shard::Impl::Impl(const ShardOptions& options, Parts parts,
                  const std::vector<ShardBlock>& blocks)
    : options_(options),
      mode_(options.training.sync()),
      most_taken_(mode_.staleness),
      policy_(MakeSyncPolicy(mode_)),
      stepper_(std::move(parts.stepper)),
      pool_(parts.pool),
      movement_(IdsOf(blocks)),
      keeps_(options.records) {
  for (const ShardBlock& one : blocks) {
    const auto [entry, is_new] =
        blocks_.try_emplace(one.block, one, stepper_->Allocate(one.range));
    SYNCLINE_CHECK(is_new);
  }
  for (auto& [id, block] : blocks_) {
    tensors_[block.spec().range.tensor].push_back(&block);
    if (!stepper_->IsFrozen(block.spec().range.tensor)) ++trained_;
  }
}

size_t Shard::Impl::resident_bytes() const {
  size_t bytes = stepper_->resident_bytes();
  for (const auto& [id, block] : blocks_) bytes += block.held_bytes();
  return bytes;
}

absl::StatusOr<ShardSnapshot> Shard::Impl::Save() const {
  ShardSnapshot snapshot;
  for (const auto& [id, block] : blocks_) {
    if (!block.IsQuiet()) {
      return absl::FailedPreconditionError(
          absl::StrCat("block ", id, " is in the middle of step ", block.version()));
    }
    snapshot.blocks[id] = block.Save();
  }
  stepper_->Save(snapshot);
  // Factors that were loaded for blocks of other shards belong to those, and are out of
  // date.
  std::erase_if(snapshot.factors,
                [this](const auto& entry) { return !tensors_.contains(entry.first); });
  return snapshot;
}

absl::Status Shard::Impl::Load(const ShardSnapshot& part) {
  for (const auto& [id, saved] : part.blocks) {
    const auto block = blocks_.find(id);
    if (block == blocks_.end()) continue;
    if (!loaded_.insert(id).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("the snapshots contain block ", id, " twice"));
    }
    SYNCLINE_RETURN_IF_ERROR(block->second.Load(saved));
  }
  stepper_->Load(part);
  return absl::OkStatus();
}

absl::Status Shard::Impl::CheckLoaded() const {
  if (loaded_.size() == blocks_.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the snapshots contain ", loaded_.size(),
                                                 " of ", blocks_.size(), " blocks"));
}

// ---- Messages ----

RefuseCode Shard::Impl::Check(const MessageHeader& header) const {
  const ShardMember* member = FindMember({header.rank, header.incarnation});
  if (member == nullptr) return RefuseCode::kNotMember;
  if (member->session_key != header.session_key) return RefuseCode::kUnauthenticated;
  if (!blocks_.contains(header.block)) return RefuseCode::kUnknownBlock;
  if (header.epoch < epoch_) return RefuseCode::kStaleEpoch;
  if (header.epoch > epoch_) return RefuseCode::kFutureEpoch;
  return RefuseCode::kNone;
}

void Shard::Impl::On(const ShardMessage& message) {
  const MessageHeader& header = message.header;
  const RefuseCode code =
      message.refused != RefuseCode::kNone ? message.refused : Check(header);
  if (code != RefuseCode::kNone) return Refuse(header, code);
  Block& block = blocks_.at(header.block);
  switch (static_cast<MessageKind>(header.kind)) {
    case MessageKind::kPull:
      return OnPull(header, block);
    case MessageKind::kPullAverage:
      return OnPullAverage(header, block);
    case MessageKind::kSeed:
      return OnSeed(message, block);
    case MessageKind::kPullState:
      return OnPullState(header, block);
    case MessageKind::kSeedState:
      return OnSeedState(message, block);
    case MessageKind::kPush:
      return OnPush(message, block);
    default:
      return Refuse(header, RefuseCode::kMalformed);
  }
}

void Shard::Impl::OnPull(const MessageHeader& header, Block& block) {
  const WorkerId worker = {header.rank, header.incarnation};
  // A view now would make the postponed contribution look younger than it is.
  if (postponed_.contains({header.block, worker})) {
    return Reply(header, MessageKind::kNoted, {});
  }
  const bool is_held = (header.flags & kFlagHeld) != 0;
  const Wish wish = {.version = header.step,
                     .held = is_held ? std::optional(DigestOf(header)) : std::nullopt};
  if (block.seeded() && block.version() >= wish.version) {
    if (!IsSafe(block)) Reply(header, MessageKind::kNoted, {});
    return PublishAsWished(block, {{worker, wish}});
  }
  block.Remember(worker, wish);
  Reply(header, MessageKind::kNoted, {});
}

void Shard::Impl::OnPullAverage(const MessageHeader& header, const Block& block) {
  const std::optional<Payload> average = stepper_->EncodeAverage(block, epoch_);
  if (!average) return Refuse(header, RefuseCode::kNoAverage);
  MessageHeader reply = header;
  reply.step = block.version();
  Reply(reply, MessageKind::kAverage, *average);
}

void Shard::Impl::OnSeed(const ShardMessage& message, Block& block) {
  if (!block.TakesSeed()) return Promise(message.header, Repeats::kYes);
  const auto view =
      ParseBlock(message.payload, {block.spec().range, 0, message.header.epoch},
                 {options_.seed_codec});
  if (!view.ok()) return Refuse(message.header, RefuseCode::kMalformed);
  if (const RefuseCode code = BeginState(message.header, block);
      code != RefuseCode::kNone) {
    return Refuse(message.header, code);
  }
  block.Seed(*view);
  KeepSeed(block);
  Promise(message.header, Repeats::kNo);
  PublishAsWished(block, block.TakeFulfilled());
}

void Shard::Impl::OnPush(const ShardMessage& message, Block& block) {
  const MessageHeader& header = message.header;
  if (stepper_->IsFrozen(block.spec().range.tensor)) {
    return Refuse(header, RefuseCode::kWrongStep);
  }
  if (mode_.is_async() && header.step >= hold_from_) return Postpone(message);
  switch (policy_->Judge(FactsOf(header, block))) {
    case PushRuling::kHeld:
      return Promise(header, Repeats::kYes);
    // The worker missed the result.
    case PushRuling::kCounted:
      Acknowledge(header, Repeats::kYes);
      if (mode_.has_quorum()) {
        std::get<ShardReply>(outputs_.back()).header.flags |= kFlagCounted;
      }
      return Publish(block, {header.rank, header.incarnation}, Encode(block));
    case PushRuling::kRefuse:
      return Refuse(header, RefuseCode::kWrongStep);
    case PushRuling::kTooLate:
      return Refuse(header, RefuseCode::kTooLate);
    case PushRuling::kTake:
      break;
  }
  if (!block.seeded()) return Refuse(header, RefuseCode::kNotSeeded);
  if (const RefuseCode code = Take(message, block); code != RefuseCode::kNone) {
    return Refuse(header, code);
  }
  movement_.Contributed({header.rank, header.incarnation}, header.block, header.step);
  const bool parts = (header.flags & kFlagParting) != 0;
  if (parts) KeepParting(message, block);
  parts ? Promise(header, Repeats::kNo) : Acknowledge(header, Repeats::kNo);
  if (mode_.is_async()) return StepOnArrival(header, block);
  if (mode_.has_quorum()) return NoteGiven(header);
  StepIfComplete(block);
}

// Other modes hold such a contribution, since its step is not made meanwhile.
void Shard::Impl::Postpone(const ShardMessage& message) {
  const MessageHeader& header = message.header;
  postponed_[{header.block, {header.rank, header.incarnation}}] = message;
  Reply(header, MessageKind::kNoted, {});
}

void Shard::Impl::TakePostponed() {
  for (const auto& [of, message] : std::exchange(postponed_, {})) {
    if (FindMember(of.second) != nullptr) OnPush(message, blocks_.at(of.first));
  }
}

RefuseCode Shard::Impl::Take(const ShardMessage& message, Block& block) {
  const MessageHeader& header = message.header;
  // In mode asp this is the step that the block makes next, whatever its number is.
  const uint64_t step = mode_.is_async() ? block.version() : header.step;
  const bool parts = (header.flags & kFlagParting) != 0;
  const bool rates = (header.flags & kFlagRate) != 0;
  const bool is_whole = !stepper_->TakesTensorsApart(header.step);
  const float factor = rates ? std::bit_cast<float>(header.shard) : 1;
  const bool is_rate = factor >= 0 && factor <= kMaxRateFactor;  // also false for NaN
  if (!is_rate || (rates && (parts || is_whole))) return RefuseCode::kMalformed;
  if (header.samples == 0) {
    const bool fits = message.payload.size() == 0 && !parts && !rates && !is_whole;
    if (!fits) return RefuseCode::kMalformed;
    block.Hold(
        step,
        {.from = {.rank = header.rank, .incarnation = header.incarnation, .samples = 0}});
    return RefuseCode::kNone;
  }
  // It may be kept for long, so it must not be in lent memory.
  if (parts && message.payload.head.size > 0) return RefuseCode::kMalformed;
  auto view = ParseBlock(message.payload, {block.spec().range, header.step, header.epoch},
                         CodecsFor(header, block.spec().range.tensor));
  if (!view.ok()) return RefuseCode::kMalformed;
  block.Hold(step,
             {.from = {header.rank, header.incarnation, header.samples, parts, factor},
              .payload = message.payload,
              .view = *std::move(view)});
  if (stepper_->AddsOnArrival()) stepper_->Accumulate(block);
  return RefuseCode::kNone;
}

// ---- Membership ----

const ShardMember* Shard::Impl::FindMember(WorkerId worker) const {
  const auto found = members_.find(worker.first);
  const bool is_here =
      found != members_.end() && found->second.incarnation == worker.second;
  return is_here ? &found->second : nullptr;
}

uint64_t Shard::Impl::LowestVersion() const {
  // Settings hold by the contributors' own steps, and some member may be far behind.
  if (mode_.is_async()) return 0;
  uint64_t lowest = std::numeric_limits<uint64_t>::max();
  for (const auto& [id, block] : blocks_) {
    if (stepper_->IsFrozen(block.spec().range.tensor)) continue;
    lowest = std::min(lowest, block.version());
  }
  return lowest;
}

void Shard::Impl::On(const ShardPrepare& prepare) {
  if (prepare.epoch <= epoch_) return;
  uint64_t next_step = 0;
  for (const auto& [id, block] : blocks_) {
    next_step =
        std::max(next_step, mode_.is_async() ? block.furthest() : block.next_step());
  }
  hold_from_ = next_step;
  prepared_epoch_ = std::max(prepared_epoch_, prepare.epoch);
  outputs_.push_back(ShardPrepared{prepare.epoch, next_step});
}

// Members hear of a change later than this shard. They learn of a larger staleness once
// all shards allow it. After a smaller one, contributions that they gave before may be on
// their way, or held.
void Shard::Impl::SetPace(const SyncMode& mode) {
  if (mode_.kind != SyncMode::Kind::kSsp) return;
  most_taken_ = std::max(most_taken_, mode.staleness);
  policy_ = MakeSyncPolicy(mode, most_taken_);
}

void Shard::Impl::On(const ShardCommit& commit) {
  outputs_.push_back(ShardCommitted{commit.epoch});
  if (commit.epoch <= epoch_) return;
  if (commit.training) {
    // The coordinator has checked the settings with the same code.
    stepper_->ForgetSettingsBefore(LowestVersion());
    SYNCLINE_CHECK(stepper_->Change(*commit.training, commit.training_from).ok());
    SetPace(commit.training->sync());
  }
  epoch_ = commit.epoch;
  if (commit.training && KeepsRecords()) {
    Keep(SettingsRecord{*commit.training, commit.training_from});
  }
  members_.clear();
  last_first_step_ = 0;
  for (const ShardMember& member : commit.members) {
    members_[member.rank] = member;
    last_first_step_ = std::max(last_first_step_, member.first_step);
  }
  // A change that was prepared meanwhile still waits for its own commit.
  if (commit.epoch >= prepared_epoch_) hold_from_ = kNoHold;
  for (auto& [id, block] : blocks_) {
    // A step that was closed is made as it was closed, even if members have died since.
    block.Forget([&, step = block.version()](WorkerId worker) {
      return FindMember(worker) != nullptr || CountsAt(step, worker.second);
    });
  }
  if (mode_.has_quorum()) CountGivers();
  for (auto& [id, block] : blocks_) StepIfComplete(block);
  TakePostponed();
}

// ---- The public class ----

absl::StatusOr<std::unique_ptr<Shard>> Shard::Create(
    const ShardOptions& options, const std::vector<ShardBlock>& blocks,
    BufferPool& pool) {
  SYNCLINE_ASSIGN_OR_RETURN(auto stepper, Stepper::Create(options, pool));
  SYNCLINE_RETURN_IF_ERROR(stepper->Reserve(blocks));
  return std::unique_ptr<Shard>(new Shard(std::make_unique<Impl>(
      options, Impl::Parts{.stepper = std::move(stepper), .pool = pool}, blocks)));
}

Shard::Shard(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Shard::~Shard() = default;

ShardOutputs Shard::Apply(const ShardInput& input) { return impl_->Apply(input); }

absl::StatusOr<ShardOutputs> Shard::Replay(const ShardRecord& record) {
  SYNCLINE_RETURN_IF_ERROR(impl_->Replay(record));
  return impl_->TakeOutputs();
}

void Shard::BeginAgain() { impl_->BeginAgain(); }
size_t Shard::UnitOf(uint32_t block) const { return impl_->UnitOf(block); }

absl::StatusOr<ShardSnapshot> Shard::Save() const { return impl_->Save(); }
absl::Status Shard::Load(const ShardSnapshot& part) { return impl_->Load(part); }
absl::Status Shard::CheckLoaded() const { return impl_->CheckLoaded(); }

RefuseCode Shard::Check(const MessageHeader& header) const {
  return impl_->Check(header);
}

absl::StatusOr<size_t> Shard::MaxPayloadBytes(const MessageHeader& header) const {
  if (const RefuseCode code = impl_->Check(header); code != RefuseCode::kNone) {
    return absl::FailedPreconditionError(
        absl::StrCat("rank ", header.rank, " incarnation ", header.incarnation, " block ",
                     header.block, " epoch ", header.epoch, " (here ", impl_->epoch(),
                     "): ", RefuseCodeName(code)));
  }
  const auto kind = static_cast<MessageKind>(header.kind);
  const bool carries = kind == MessageKind::kSeed || kind == MessageKind::kSeedState ||
                       kind == MessageKind::kPush;
  if (!carries) return 0;
  if (kind == MessageKind::kPush && header.samples == 0) return 0;
  const BlockRange& range = impl_->block(header.block).spec().range;
  return MaxBlockBytes(impl_->CodecsFor(header, range.tensor), range.elements);
}

const ShardMember* Shard::FindMember(uint32_t rank, uint32_t incarnation) const {
  return impl_->FindMember({rank, incarnation});
}

uint64_t Shard::epoch() const { return impl_->epoch(); }
bool Shard::HasBlock(uint32_t block) const { return impl_->HasBlock(block); }
bool Shard::HasValues(uint32_t block) const { return impl_->block(block).seeded(); }
uint64_t Shard::block_version(uint32_t block) const {
  return impl_->block(block).version();
}
std::span<const float> Shard::block_weights(uint32_t block) const {
  return impl_->block(block).memory().weights;
}
uint32_t Shard::block_digest(uint32_t block) const {
  return impl_->block(block).Digest();
}
size_t Shard::resident_bytes() const { return impl_->resident_bytes(); }

}  // namespace syncline
