#include "server/shard/shard.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/base/check.h"
#include "comm/base/status.h"
#include "server/shard/block.h"
#include "server/shard/stepper.h"

namespace syncline {
namespace {

constexpr uint64_t kNoHold = std::numeric_limits<uint64_t>::max();

bool IsParting(const MessageHeader& header) { return (header.flags & kFlagParting) != 0; }

}  // namespace

class Shard::Impl {
 public:
  Impl(const ShardOptions& options, std::unique_ptr<Stepper> stepper,
       const std::vector<ShardBlock>& blocks);

  ShardOutputs Apply(const ShardInput& input) {
    outputs_.clear();
    std::visit([this](const auto& one) { On(one); }, input);
    return std::exchange(outputs_, {});
  }

  RefuseCode Check(const MessageHeader& header) const;
  const ShardMember* FindMember(WorkerId worker) const;
  // What a seed or push may be encoded with.
  CodecSet CodecsFor(const MessageHeader& header, uint32_t tensor) const {
    const bool is_seed = header.kind == static_cast<uint16_t>(MessageKind::kSeed);
    if (is_seed || IsParting(header)) return {options_.seed_codec};
    return options_.transfers[tensor].push.Accepted();
  }
  const Block& block(uint32_t id) const {
    const auto found = blocks_.find(id);
    SYNCLINE_CHECK(found != blocks_.end());
    return found->second;
  }
  absl::StatusOr<ShardSnapshot> Save() const;
  absl::Status Load(const std::vector<ShardSnapshot>& snapshots);
  uint64_t epoch() const { return epoch_; }
  size_t resident_bytes() const;

 private:
  void On(const ShardMessage& message);
  void On(const ShardPrepare& prepare);
  void On(const ShardCommit& commit);
  void On(const ShardDecision& decision);
  void OnPull(const MessageHeader& header, Block& block);
  void OnPullAverage(const MessageHeader& header, const Block& block);
  void OnSeed(const ShardMessage& message, Block& block);
  void OnPush(const ShardMessage& message, Block& block);

  // The blocks that step together with this one: those of its tensor, or it alone.
  std::span<Block* const> UnitOf(const Block& block) const;
  size_t ExpectedContributions(uint64_t step) const;
  bool IsComplete(const Block& block) const;
  void StepIfComplete(Block& block);
  void Step(std::span<Block* const> unit, const ShardDecision& decision);
  void Accumulate(Block& block);
  void SendFigures(Block& block);

  void Reply(MessageHeader header, MessageKind kind, Payload payload);
  void Refuse(const MessageHeader& header, RefuseCode code);
  enum class Repeats { kNo, kYes };
  void Acknowledge(const MessageHeader& header, Repeats repeats);
  void Publish(const Block& block, WorkerId to, const Payload& view);
  void PublishUnchanged(const Block& block, WorkerId to);
  // Sends the new version to those who contributed or may have, and to those who wait for
  // it. Without a view the weights are those of the last version.
  void PublishToAll(Block& block, const std::optional<Payload>& view);
  Payload Encode(const Block& block) { return stepper_->Encode(block, epoch_); }

  const ShardOptions options_;
  const std::unique_ptr<Stepper> stepper_;
  std::map<uint32_t, Block> blocks_;  // by id, which is also the order of all work
  std::map<uint32_t, std::vector<Block*>> tensors_;  // blocks in order

  uint64_t epoch_ = 0;
  std::map<uint32_t, ShardMember> members_;  // by rank
  uint64_t last_first_step_ = 0;             // from here on every member contributes
  uint64_t prepared_epoch_ = 0;
  uint64_t hold_from_ = kNoHold;  // no block completes this step or a later one

  ShardOutputs outputs_;  // of the Apply under way
};

Shard::Impl::Impl(const ShardOptions& options, std::unique_ptr<Stepper> stepper,
                  const std::vector<ShardBlock>& blocks)
    : options_(options), stepper_(std::move(stepper)) {
  for (const ShardBlock& one : blocks) {
    const auto [entry, is_new] =
        blocks_.try_emplace(one.block, one, stepper_->Allocate(one.range));
    SYNCLINE_CHECK(is_new);
  }
  for (auto& [id, block] : blocks_) {
    tensors_[block.spec().range.tensor].push_back(&block);
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
  // What was loaded with blocks of other shards is theirs, and out of date by now.
  std::erase_if(snapshot.factors,
                [this](const auto& entry) { return !tensors_.contains(entry.first); });
  return snapshot;
}

absl::Status Shard::Impl::Load(const std::vector<ShardSnapshot>& snapshots) {
  size_t loaded = 0;
  for (const ShardSnapshot& snapshot : snapshots) {
    for (const auto& [id, saved] : snapshot.blocks) {
      const auto block = blocks_.find(id);
      if (block == blocks_.end()) continue;
      SYNCLINE_RETURN_IF_ERROR(block->second.Load(saved));
      ++loaded;
    }
    stepper_->Load(snapshot);
  }
  if (loaded == blocks_.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the snapshots hold ", loaded, " of ", blocks_.size(), " blocks"));
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
  if (const RefuseCode code = Check(header); code != RefuseCode::kNone) {
    return Refuse(header, code);
  }
  Block& block = blocks_.at(header.block);
  switch (static_cast<MessageKind>(header.kind)) {
    case MessageKind::kPull:
      return OnPull(header, block);
    case MessageKind::kPullAverage:
      return OnPullAverage(header, block);
    case MessageKind::kSeed:
      return OnSeed(message, block);
    case MessageKind::kPush:
      return OnPush(message, block);
    default:
      return Refuse(header, RefuseCode::kMalformed);
  }
}

void Shard::Impl::OnPull(const MessageHeader& header, Block& block) {
  const WorkerId worker = {header.rank, header.incarnation};
  if (block.seeded() && block.version() >= header.step) {
    return Publish(block, worker, Encode(block));
  }
  block.Remember(worker, header.step);
}

void Shard::Impl::OnPullAverage(const MessageHeader& header, const Block& block) {
  const std::optional<Payload> average = stepper_->EncodeAverage(block, epoch_);
  if (!average) return Refuse(header, RefuseCode::kNoAverage);
  MessageHeader reply = header;
  reply.step = block.version();
  Reply(reply, MessageKind::kAverage, *average);
}

void Shard::Impl::OnSeed(const ShardMessage& message, Block& block) {
  if (!block.TakesSeed()) return Acknowledge(message.header, Repeats::kYes);
  const auto view =
      ParseBlock({message.payload.data, message.payload.size},
                 {block.spec().range, 0, message.header.epoch}, {options_.seed_codec});
  if (!view.ok()) return Refuse(message.header, RefuseCode::kMalformed);
  block.Seed(*view);
  Acknowledge(message.header, Repeats::kNo);
  const std::vector<WorkerId> waiting = block.TakeFulfilled();
  if (waiting.empty()) return;
  const Payload published = Encode(block);
  for (const WorkerId& worker : waiting) Publish(block, worker, published);
}

void Shard::Impl::OnPush(const ShardMessage& message, Block& block) {
  const MessageHeader& header = message.header;
  if (stepper_->IsFrozen(block.spec().range.tensor)) {
    return Refuse(header, RefuseCode::kWrongStep);
  }
  switch (block.StateOf(members_.at(header.rank), header.step)) {
    case PushState::kHeld:
      return Acknowledge(header, Repeats::kYes);
    case PushState::kCounted:  // and the worker missed the result
      Acknowledge(header, Repeats::kYes);
      return Publish(block, {header.rank, header.incarnation}, Encode(block));
    case PushState::kWrongStep:
      return Refuse(header, RefuseCode::kWrongStep);
    case PushState::kNotSeeded:
      return Refuse(header, RefuseCode::kNotSeeded);
    case PushState::kWanted:
      break;
  }
  if (header.samples == 0) return Refuse(header, RefuseCode::kMalformed);
  auto view =
      ParseBlock({message.payload.data, message.payload.size}, block.Label(header.epoch),
                 CodecsFor(header, block.spec().range.tensor));
  if (!view.ok()) return Refuse(header, RefuseCode::kMalformed);
  if (block.CountedBefore(header.rank)) {
    block.HoldNothing(members_.at(header.rank));
    Acknowledge(header, Repeats::kNo);
    return StepIfComplete(block);
  }
  block.Hold(
      {.from = {header.rank, header.incarnation, header.samples, IsParting(header)},
       .payload = message.payload,
       .view = *std::move(view)});
  if (stepper_->AddsOnArrival()) stepper_->Accumulate(block);
  Acknowledge(header, Repeats::kNo);
  StepIfComplete(block);
}

// ---- Membership ----

const ShardMember* Shard::Impl::FindMember(WorkerId worker) const {
  const auto found = members_.find(worker.first);
  const bool is_here =
      found != members_.end() && found->second.incarnation == worker.second;
  return is_here ? &found->second : nullptr;
}

void Shard::Impl::On(const ShardPrepare& prepare) {
  if (prepare.epoch <= epoch_) return;
  uint64_t next_step = 0;
  for (const auto& [id, block] : blocks_) {
    next_step = std::max(next_step, block.next_step());
  }
  hold_from_ = next_step;
  prepared_epoch_ = std::max(prepared_epoch_, prepare.epoch);
  outputs_.push_back(ShardPrepared{prepare.epoch, next_step});
}

void Shard::Impl::On(const ShardCommit& commit) {
  outputs_.push_back(ShardCommitted{commit.epoch});
  if (commit.epoch <= epoch_) return;
  if (commit.training) {
    // The coordinator has checked them; its own check is the same code.
    SYNCLINE_CHECK(stepper_->Change(*commit.training, commit.training_from).ok());
  }
  epoch_ = commit.epoch;
  members_.clear();
  last_first_step_ = 0;
  for (const ShardMember& member : commit.members) {
    members_[member.rank] = member;
    last_first_step_ = std::max(last_first_step_, member.first_step);
  }
  // A change that was prepared meanwhile still waits for its own commit.
  if (commit.epoch >= prepared_epoch_) hold_from_ = kNoHold;
  for (auto& [id, block] : blocks_) {
    block.Forget([this](WorkerId worker) { return FindMember(worker) != nullptr; });
  }
  for (auto& [id, block] : blocks_) StepIfComplete(block);
}

// ---- Steps ----

size_t Shard::Impl::ExpectedContributions(uint64_t step) const {
  if (step >= last_first_step_) return members_.size();
  return std::ranges::count_if(
      members_, [&](const auto& entry) { return entry.second.first_step <= step; });
}

std::span<Block* const> Shard::Impl::UnitOf(const Block& block) const {
  const std::vector<Block*>& all = tensors_.at(block.spec().range.tensor);
  if (stepper_->StepsWhole(block.spec().range.tensor)) return all;
  return {&*std::ranges::find(all, &block), 1};
}

// A step that no present member takes part in is over, too: its contributors were dropped
// before it was complete, and those who joined begin later. Such steps pass without a
// change.
bool Shard::Impl::IsComplete(const Block& block) const {
  return !members_.empty() && block.seeded() && !block.frozen() &&
         block.version() < hold_from_ &&
         block.present() == ExpectedContributions(block.version()) &&
         !stepper_->IsFrozen(block.spec().range.tensor);
}

void Shard::Impl::StepIfComplete(Block& block) {
  const std::span<Block* const> unit = UnitOf(block);
  while (
      std::ranges::all_of(unit, [this](const Block* one) { return IsComplete(*one); })) {
    const uint64_t step = block.version();
    for (Block* one : unit) one->SetWeights();
    if (!stepper_->Updates(step)) {
      for (Block* one : unit) Accumulate(*one);
    } else if (stepper_->NeedsDecision(step)) {
      for (Block* one : unit) SendFigures(*one);
    } else {
      Step(unit, {.step = step});
    }
  }
}

void Shard::Impl::SendFigures(Block& block) {
  outputs_.push_back(ShardFigures{.block = block.spec().block,
                                  .step = block.version(),
                                  .figures = stepper_->Figures(block)});
  block.Freeze();
}

void Shard::Impl::On(const ShardDecision& decision) {
  std::vector<Block*> waiting;
  for (auto& [id, block] : blocks_) {
    if (block.frozen() && block.version() == decision.step) waiting.push_back(&block);
  }
  if (waiting.empty()) return;
  stepper_->Prepare(decision, waiting.front()->updates());
  for (Block* block : waiting) {
    if (block->frozen() && block->version() == decision.step) {
      Step(UnitOf(*block), decision);
    }
  }
  stepper_->Finish();
  for (Block* block : waiting) StepIfComplete(*block);
}

void Shard::Impl::Accumulate(Block& block) {
  auto contributors = block.Contributors();
  const bool skips = contributors.empty();
  outputs_.push_back(
      ShardApplied{block.spec().block, block.version(), std::move(contributors), skips});
  stepper_->Accumulate(block);
  block.Advance(Block::Outcome::kAccumulated);
  PublishToAll(block, std::nullopt);
}

void Shard::Impl::Step(std::span<Block* const> unit, const ShardDecision& decision) {
  const bool skips =
      decision.verdict == ShardDecision::Verdict::kSkip ||
      std::ranges::any_of(unit, [](const Block* block) { return block->samples() == 0; });
  const bool keeps_weights =
      skips || stepper_->KindAt(decision.step) == ContributionKind::kHessian;
  std::vector<Payload> views;
  if (!skips) views = stepper_->Update(unit, decision, epoch_);
  for (size_t i = 0; i < unit.size(); ++i) {
    Block& block = *unit[i];
    outputs_.push_back(
        ShardApplied{block.spec().block, block.version(), block.Contributors(), skips});
    block.Advance(keeps_weights ? Block::Outcome::kUnchanged : Block::Outcome::kUpdated);
    // A delta may bring the view nearer to weights that stay as they are.
    const bool is_news = !skips && !(keeps_weights && block.memory().view.empty());
    PublishToAll(block, is_news ? std::optional(views[i]) : std::nullopt);
  }
}

// ---- Replies ----

void Shard::Impl::Reply(MessageHeader header, MessageKind kind, Payload payload) {
  header.kind = static_cast<uint16_t>(kind);
  header.epoch = epoch_;
  header.shard = options_.shard;
  header.flags = 0;
  header.samples = 0;
  outputs_.push_back(
      ShardReply{header.rank, header.incarnation, header, std::move(payload)});
}

void Shard::Impl::Refuse(const MessageHeader& header, RefuseCode code) {
  MessageHeader reply = header;
  reply.code = static_cast<uint16_t>(code);
  Reply(reply, MessageKind::kRefuse, {});
}

void Shard::Impl::Acknowledge(const MessageHeader& header, Repeats repeats) {
  MessageHeader reply = header;
  reply.code = 0;
  Reply(reply, MessageKind::kAck, {});
  std::get<ShardReply>(outputs_.back()).repeats = repeats == Repeats::kYes;
}

void Shard::Impl::PublishToAll(Block& block, const std::optional<Payload>& view) {
  const uint64_t step = block.version() - 1;
  const std::vector<WorkerId> wishes = block.TakeFulfilled();
  // Who took part holds the version before, to which a delta is added.
  std::optional<Payload> whole = block.memory().view.empty() ? view : std::nullopt;
  for (const auto& [rank, member] : members_) {
    const WorkerId worker = {rank, member.incarnation};
    const bool took_part = member.first_step <= step;
    if (took_part && view) {
      Publish(block, worker, *view);
    } else if (took_part) {
      PublishUnchanged(block, worker);
    } else if (std::ranges::count(wishes, worker) > 0) {
      if (!whole) whole = Encode(block);
      Publish(block, worker, *whole);
    }
  }
}

void Shard::Impl::PublishUnchanged(const Block& block, WorkerId to) {
  Publish(block, to, {});
  std::get<ShardReply>(outputs_.back()).header.flags = kFlagUnchanged;
}

void Shard::Impl::Publish(const Block& block, WorkerId to, const Payload& view) {
  MessageHeader header;
  header.job = options_.job;
  header.rank = to.first;
  header.incarnation = to.second;
  header.session_key = members_.at(to.first).session_key;
  header.block = block.spec().block;
  header.step = block.version();
  Reply(header, MessageKind::kPublish, view);
  MessageHeader& published = std::get<ShardReply>(outputs_.back()).header;
  published.samples = std::bit_cast<uint32_t>(stepper_->loss_scale());
  published.shard = std::bit_cast<uint32_t>(stepper_->learning_rate(block.version()));
}

// ---- The class as others see it ----

absl::StatusOr<std::unique_ptr<Shard>> Shard::Create(
    const ShardOptions& options, const std::vector<ShardBlock>& blocks,
    BufferPool& pool) {
  SYNCLINE_ASSIGN_OR_RETURN(auto stepper, Stepper::Create(options, pool));
  return std::unique_ptr<Shard>(
      new Shard(std::make_unique<Impl>(options, std::move(stepper), blocks)));
}

Shard::Shard(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Shard::~Shard() = default;

ShardOutputs Shard::Apply(const ShardInput& input) { return impl_->Apply(input); }

absl::StatusOr<ShardSnapshot> Shard::Save() const { return impl_->Save(); }
absl::Status Shard::Load(const std::vector<ShardSnapshot>& snapshots) {
  return impl_->Load(snapshots);
}

absl::StatusOr<size_t> Shard::MaxPayloadBytes(const MessageHeader& header) const {
  if (const RefuseCode code = impl_->Check(header); code != RefuseCode::kNone) {
    return absl::FailedPreconditionError(
        absl::StrCat("rank ", header.rank, " incarnation ", header.incarnation, " block ",
                     header.block, " epoch ", header.epoch, " (here ", impl_->epoch(),
                     "): ", RefuseCodeName(code)));
  }
  const auto kind = static_cast<MessageKind>(header.kind);
  if (kind != MessageKind::kSeed && kind != MessageKind::kPush) return 0;
  const BlockRange& range = impl_->block(header.block).spec().range;
  return MaxBlockBytes(impl_->CodecsFor(header, range.tensor), range.elements);
}

const ShardMember* Shard::FindMember(uint32_t rank, uint32_t incarnation) const {
  return impl_->FindMember({rank, incarnation});
}

uint64_t Shard::epoch() const { return impl_->epoch(); }
uint64_t Shard::block_version(uint32_t block) const {
  return impl_->block(block).version();
}
std::span<const float> Shard::block_weights(uint32_t block) const {
  return impl_->block(block).memory().weights;
}
size_t Shard::resident_bytes() const { return impl_->resident_bytes(); }

}  // namespace syncline
