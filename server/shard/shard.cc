#include "server/shard/shard.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/base/check.h"
#include "comm/base/status.h"
#include "server/shard/block.h"
#include "server/shard/step.h"

namespace syncline {
namespace {

constexpr uint64_t kNoHold = std::numeric_limits<uint64_t>::max();

// Blocks start on cache lines, so that no two share one and vector loads are aligned.
constexpr size_t AlignedElements(size_t elements) {
  constexpr size_t kLine = kBufferAlignment / sizeof(float);
  return (elements + kLine - 1) / kLine * kLine;
}

Buffer ZeroedFloats(size_t elements) {
  const Buffer buffer = Buffer::Allocate(elements * sizeof(float));
  if (!buffer.empty()) std::memset(buffer.data(), 0, buffer.size());
  return buffer;
}

float* FloatsAt(const Buffer& buffer, size_t offset) {
  return reinterpret_cast<float*>(buffer.data()) + offset;
}

}  // namespace

class Shard::Impl {
 public:
  Impl(const ShardOptions& options, std::unique_ptr<Optimizer> optimizer,
       const std::vector<ShardBlock>& blocks, BufferPool& pool);

  ShardOutputs Apply(const ShardInput& input) {
    outputs_.clear();
    std::visit([this](const auto& one) { On(one); }, input);
    return std::exchange(outputs_, {});
  }

  RefuseCode Check(const MessageHeader& header) const;
  const ShardMember* FindMember(WorkerId worker) const;
  const Codec& CodecFor(MessageKind kind) const {
    return kind == MessageKind::kSeed ? *options_.seed_codec : *options_.push_codec;
  }
  const Block& block(uint32_t id) const {
    const auto found = blocks_.find(id);
    SYNCLINE_CHECK(found != blocks_.end());
    return found->second;
  }
  uint64_t epoch() const { return epoch_; }
  size_t resident_bytes() const;

 private:
  void On(const ShardMessage& message);
  void On(const ShardPrepare& prepare);
  void On(const ShardCommit& commit);
  void On(const ShardDecision& decision);
  void OnPull(const MessageHeader& header, Block& block);
  void OnSeed(const ShardMessage& message, Block& block);
  void OnPush(const ShardMessage& message, Block& block);

  size_t ExpectedContributions(uint64_t step) const;
  void StepIfComplete(Block& block);
  void Step(Block& block, const ShardDecision& decision);
  void SendFigures(Block& block);

  void Reply(MessageHeader header, MessageKind kind, Payload payload);
  void Refuse(const MessageHeader& header, RefuseCode code);
  enum class Repeats { kNo, kYes };
  void Acknowledge(const MessageHeader& header, Repeats repeats);
  void Publish(const Block& block, WorkerId to, const Payload& view);
  Payload Encode(const Block& block);

  const ShardOptions options_;
  StepPass pass_;
  Buffer weights_;
  std::array<Buffer, kMaxStateSlots> state_;
  std::map<uint32_t, Block> blocks_;  // by id, which is also the order of all work

  uint64_t epoch_ = 0;
  std::map<uint32_t, ShardMember> members_;  // by rank
  uint64_t last_first_step_ = 0;             // from here on every member contributes
  uint64_t prepared_epoch_ = 0;
  uint64_t hold_from_ = kNoHold;  // no block completes this step or a later one

  ShardOutputs outputs_;  // of the Apply under way
};

Shard::Impl::Impl(const ShardOptions& options, std::unique_ptr<Optimizer> optimizer,
                  const std::vector<ShardBlock>& blocks, BufferPool& pool)
    : options_(options), pass_(options, std::move(optimizer), pool) {
  size_t elements = 0;
  for (const ShardBlock& one : blocks) elements += AlignedElements(one.range.elements);
  weights_ = ZeroedFloats(elements);
  for (int i = 0; i < pass_.StateSlots(); ++i) state_[i] = ZeroedFloats(elements);
  size_t offset = 0;
  for (const ShardBlock& one : blocks) {
    BlockMemory memory = {.weights = {FloatsAt(weights_, offset), one.range.elements}};
    for (int i = 0; i < pass_.StateSlots(); ++i) {
      memory.state[i] = FloatsAt(state_[i], offset);
    }
    const bool is_new = blocks_.try_emplace(one.block, one, memory).second;
    SYNCLINE_CHECK(is_new);
    offset += AlignedElements(one.range.elements);
  }
}

size_t Shard::Impl::resident_bytes() const {
  size_t bytes = weights_.size();
  for (const Buffer& slot : state_) bytes += slot.size();
  for (const auto& [id, block] : blocks_) bytes += block.held_bytes();
  return bytes;
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

void Shard::Impl::OnSeed(const ShardMessage& message, Block& block) {
  if (!block.TakesSeed()) return Acknowledge(message.header, Repeats::kYes);
  const auto view =
      ParseBlock({message.payload.data, message.payload.size},
                 {block.spec().range, 0, message.header.epoch}, *options_.seed_codec);
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
  auto view = ParseBlock({message.payload.data, message.payload.size},
                         block.Label(header.epoch), *options_.push_codec);
  if (!view.ok()) return Refuse(header, RefuseCode::kMalformed);
  block.Hold({.from = {header.rank, header.incarnation, header.samples},
              .payload = message.payload,
              .view = *std::move(view)});
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

// A step that no present member takes part in is over, too: its contributors were dropped
// before it was complete, and those who joined begin later. Such steps pass without a
// change.
void Shard::Impl::StepIfComplete(Block& block) {
  while (!members_.empty() && block.seeded() && !block.frozen() &&
         block.version() < hold_from_ &&
         block.contributions().size() == ExpectedContributions(block.version())) {
    SetWeights(block.contributions());
    if (options_.mode == StepMode::kDecided) return SendFigures(block);
    Step(block, {.step = block.version()});
  }
}

void Shard::Impl::SendFigures(Block& block) {
  ShardFigures figures;
  figures.block = block.spec().block;
  figures.step = block.version();
  figures.tile_square_sums =
      pass_.SquareSums(block.spec().range.elements, block.contributions());
  figures.finite = std::ranges::all_of(figures.tile_square_sums,
                                       [](double sum) { return std::isfinite(sum); });
  block.Freeze();
  outputs_.push_back(std::move(figures));
}

void Shard::Impl::On(const ShardDecision& decision) {
  for (auto& [id, block] : blocks_) {
    if (!block.frozen() || block.version() != decision.step) continue;
    Step(block, decision);
    StepIfComplete(block);
  }
}

void Shard::Impl::Step(Block& block, const ShardDecision& decision) {
  const uint64_t step = block.version();
  ShardApplied applied = {block.spec().block, step, block.Contributors()};
  applied.skipped =
      decision.verdict == ShardDecision::Verdict::kSkip || applied.contributors.empty();
  Payload view;
  if (applied.skipped) {
    block.Advance(Block::Outcome::kSkipped);
    view = Encode(block);
  } else {
    StepScalars scalars =
        ScalarsFor(options_.optimizer, block.spec().group, block.updates() + 1);
    scalars.gradient_scale = decision.gradient_scale;
    BlockLabel label = block.Label(epoch_);
    label.step = step + 1;
    view = pass_.Apply(scalars, block.contributions(), block.memory(), label);
    block.Advance(Block::Outcome::kUpdated);
  }
  outputs_.push_back(std::move(applied));
  const std::vector<WorkerId> wishes = block.TakeFulfilled();
  for (const auto& [rank, member] : members_) {
    const WorkerId worker = {rank, member.incarnation};
    if (member.first_step <= step || std::ranges::count(wishes, worker) > 0) {
      Publish(block, worker, view);
    }
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

void Shard::Impl::Publish(const Block& block, WorkerId to, const Payload& view) {
  MessageHeader header;
  header.job = options_.job;
  header.rank = to.first;
  header.incarnation = to.second;
  header.session_key = members_.at(to.first).session_key;
  header.block = block.spec().block;
  header.step = block.version();
  Reply(header, MessageKind::kPublish, view);
}

Payload Shard::Impl::Encode(const Block& block) {
  return pass_.Encode(block.memory().weights, block.Label(epoch_));
}

// ---- The class as others see it ----

absl::StatusOr<std::unique_ptr<Shard>> Shard::Create(
    const ShardOptions& options, const std::vector<ShardBlock>& blocks,
    BufferPool& pool) {
  SYNCLINE_ASSIGN_OR_RETURN(auto optimizer, MakeOptimizer(options.optimizer));
  for (const ShardBlock& block : blocks) {
    SYNCLINE_RETURN_IF_ERROR(ValidateGroup(block.group));
  }
  return std::unique_ptr<Shard>(
      new Shard(std::make_unique<Impl>(options, std::move(optimizer), blocks, pool)));
}

Shard::Shard(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Shard::~Shard() = default;

ShardOutputs Shard::Apply(const ShardInput& input) { return impl_->Apply(input); }

absl::StatusOr<size_t> Shard::MaxPayloadBytes(const MessageHeader& header) const {
  if (const RefuseCode code = impl_->Check(header); code != RefuseCode::kNone) {
    return absl::FailedPreconditionError(
        absl::StrCat("rank ", header.rank, " incarnation ", header.incarnation, " block ",
                     header.block, " epoch ", header.epoch, " (here ", impl_->epoch(),
                     "): ", RefuseCodeName(code)));
  }
  const auto kind = static_cast<MessageKind>(header.kind);
  if (kind != MessageKind::kSeed && kind != MessageKind::kPush) return 0;
  const uint32_t elements = impl_->block(header.block).spec().range.elements;
  return MaxBlockBytes(impl_->CodecFor(kind), elements);
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
