// The sending part of exchange.h: chooses the next block, requests its encoding, and
// sends the result.
#include <algorithm>
#include <bit>
#include <utility>

#include "comm/base/check.h"
#include "comm/transport/message.h"
#include "worker/client/exchange.h"

namespace syncline {

void Exchange::SetPhase(Block& block, Phase phase) {
  if (IsUnheld(block.phase)) --unheld_;
  if (IsUnheld(phase)) ++unheld_;
  ShardQueue& queue = shards_[block.shard];
  if (block.sent_at_ns > 0 && phase != Phase::kSent) TraceAcknowledged(block);
  if (block.phase == Phase::kSent) queue.unacknowledged -= block.sent_bytes;
  if (phase == Phase::kSent) queue.unacknowledged += block.sent_bytes;
  const auto id = static_cast<uint32_t>(&block - blocks_.data());
  if (phase != Phase::kQueued) queue.queued.erase(id);
  queue.encoding.erase(id);
  queue.promised -= std::exchange(block.promised, 0);
  if (phase == Phase::kEncoding) {
    queue.encoding.insert(id);
    const size_t in_fp32 = MaxBlockBytes(*options_.seed_codec, block.range.elements);
    queue.promised += block.promised = block.sent_bytes > 0 ? block.sent_bytes : in_fp32;
  }
  queue.held.erase(id);
  queue.held_bytes -= std::exchange(block.held_bytes, 0);
  if (phase == Phase::kHeld && block.kind == MessageKind::kPush) {
    queue.held.insert(id);
    queue.held_bytes += block.held_bytes = block.sent_bytes;
  }
  block.phase = phase;
}

size_t Exchange::HeldInFront(uint32_t shard, size_t limit) const {
  const ShardQueue& queue = shards_[shard];
  uint32_t next = std::numeric_limits<uint32_t>::max();
  for (const auto* waiting : {&queue.queued, &queue.encoding}) {
    if (!waiting->empty()) next = std::min(next, *waiting->begin());
  }
  size_t bytes = 0;
  for (const uint32_t id : queue.held) {
    if (id > next || bytes >= limit) break;
    bytes += blocks_[id].held_bytes;
  }
  return std::min(bytes, limit);
}

// Takes the shards in turns, so that all of them have something to do.
void Exchange::PumpAll(absl::Duration now, ExchangeOutputs& outputs) {
  bool has_begun = true;
  while (has_begun) {
    has_begun = false;
    for (uint32_t shard = 0; shard < shards_.size(); ++shard) {
      has_begun |= BeginNext(shard, now, outputs);
    }
  }
  EnterPhase();
}

void Exchange::PumpShard(uint32_t shard, absl::Duration now, ExchangeOutputs& outputs) {
  while (BeginNext(shard, now, outputs)) {
  }
  EnterPhase();
}

ExchangeOutputs Exchange::Pump(absl::Duration now) {
  ExchangeOutputs outputs;
  PumpAll(now, outputs);
  return outputs;
}

// Blocks that are being encoded count against the room (HasRoom). Each is assumed to be
// as long as its previous encoding.
bool Exchange::BeginNext(uint32_t shard, absl::Duration now, ExchangeOutputs& outputs) {
  ShardQueue& queue = shards_[shard];
  if (failed_ || !queue.is_connected) return false;
  for (const uint32_t id : queue.queued) {
    const bool may_begin = encodings_ < options_.encodings_at_once && HasRoom(queue, id);
    if (!may_begin) return false;
    if (Begin(id, now, outputs)) return true;
  }
  return false;
}

bool Exchange::HasRoom(const ShardQueue& queue, uint32_t id) const {
  const size_t room = IsUrgent(blocks_[id]) ? queue.urgent_room : queue.room;
  return room > queue.promised;
}

// Whether the block is a contribution, and all blocks before it have been sent. Seeds are
// never urgent.
bool Exchange::IsUrgent(const Block& block) const {
  const auto id = static_cast<uint32_t>(&block - blocks_.data());
  return block.kind == MessageKind::kPush &&
         shards_[block.shard].front.IsNext(id, block.step);
}

bool Exchange::Begin(uint32_t id, absl::Duration now, ExchangeOutputs& outputs) {
  Block& block = blocks_[id];
  Tensor& tensor = tensors_[block.range.tensor];
  // An earlier request of the block or its tensor must be finished first. A view that is
  // being decoded may make the message unnecessary.
  if (block.is_encoding || block.decoding != nullptr || tensor.is_surveyed) return false;
  const bool is_push = block.kind == MessageKind::kPush;
  if (is_push && !parting_) {
    std::optional<Payload> payload;
    if (tensor.skips) payload.emplace();
    if (!payload) payload = encoder_.Repeated(ContributionOf(block));
    if (payload) {
      SendBlock(id, *std::move(payload), now, outputs);
      return true;
    }
  }
  std::shared_ptr<EncodeWork> work = !is_push ? AskSeed(block)
                                     : parting_
                                         ? encoder_.AskParting(ContributionOf(block))
                                         : encoder_.Ask(ContributionOf(block));
  ++encodings_;
  ++tensor.encodings;
  if (work->IsSurvey()) {
    tensor.is_surveyed = true;
  } else {
    block.is_encoding = true;
    block.is_read = !is_push;
    SetPhase(block, Phase::kEncoding);
  }
  outputs.push_back(ExchangeEncode{std::move(work)});
  return true;
}

ExchangeOutputs Exchange::Encoded(EncodeWork& work, absl::Duration now) {
  ExchangeOutputs outputs;
  const GradientBlock& contribution = work.contribution();
  const uint32_t id = contribution.block;
  Block& block = blocks_[id];
  const uint32_t tensor_id = block.range.tensor;
  Tensor& tensor = tensors_[tensor_id];
  --encodings_;
  --tensor.encodings;
  if (!work.status().ok()) {
    if (!failed_) Fail(work.status(), outputs);
    return outputs;
  }
  Payload payload = encoder_.Take(work);
  if (work.IsSurvey()) {
    tensor.is_surveyed = false;
  } else {
    block.is_encoding = false;
    block.is_read = false;
    const bool is_wanted =
        contribution.label.epoch == epoch_ && block.decoding == nullptr && !failed_;
    if (block.phase == Phase::kEncoding) {
      if (shards_[block.shard].is_connected && is_wanted) {
        SendBlock(id, std::move(payload), now, outputs);
      } else {
        Enqueue(id, block.kind);
      }
    } else if (!IsContribution(block) || block.step != contribution.label.step) {
      // The contribution was counted meanwhile, or is too late.
      if (tensor.late.empty()) encoder_.Forget(id);
    }
  }
  if (tensor.encodings == 0) TakeBackLate(tensor);
  HandleDeferred(id, now, outputs);
  ReportIfReady(tensor_id, outputs);
  PumpAll(now, outputs);
  return outputs;
}

void Exchange::SendBlock(uint32_t id, Payload payload, absl::Duration now,
                         ExchangeOutputs& outputs) {
  Block& block = blocks_[id];
  const bool is_seed = block.kind != MessageKind::kPush;
  const Tensor& tensor = tensors_[block.range.tensor];
  const bool skips = !is_seed && !parting_ && tensor.skips;
  ShardQueue& queue = shards_[block.shard];
  ExchangeSend send{.shard = block.shard,
                    .header = HeaderFor(id, block.kind, StepOf(block)),
                    .payload = std::move(payload)};
  // The payload may be in the gradient's memory, lent to the server or not.
  const ByteView gradient = tensor.gradient.bytes();
  send.borrows_gradient =
      std::ranges::any_of(send.payload, [&gradient](const Slice& slice) {
        return slice.data >= gradient.data() &&
               slice.data < gradient.data() + gradient.size();
      });
  send.header.samples = is_seed || skips ? 0 : tensor.samples;
  if (const SeedState* state = is_seed ? SeedStateOf(block) : nullptr) {
    const auto updates = static_cast<uint32_t>(state->updates);
    const bool is_array = block.kind == MessageKind::kSeedState;
    send.header.samples = is_array ? block.seed_array : updates;
    if (is_array) send.header.shard = updates;
  }
  if (parting_) {
    send.header.flags = kFlagParting;
  } else if (!is_seed && !skips && tensor.rate_factor != 1) {
    send.header.flags = kFlagRate;
    send.header.shard = std::bit_cast<uint32_t>(tensor.rate_factor);
  }
  if (IsUrgent(block)) send.traffic_class = TrafficClass::kUrgent;
  if (!is_seed) queue.front.Sent(id, block.step);
  block.sent_bytes = PayloadBytes(send.payload);
  SetPhase(block, Phase::kSent);
  const size_t bytes = block.sent_bytes + kMessageHeaderBytes;
  queue.room -= std::min(queue.room, bytes);
  queue.urgent_room -= std::min(queue.urgent_room, bytes);
  if (!is_seed) TraceSent(block);
  size_t& longest = queue.contribution_bytes;
  if (!is_seed) longest = std::max(longest, block.sent_bytes);
  wire_.Sent(now, encoder_.cost_here());
  block.sent_epoch = epoch_;
  block.due = absl::InfiniteDuration();
  block.is_noted = false;
  if (send.borrows_gradient) ++block.borrowed_sends;
  if (block.attempts++ > 0) {
    ++stats_.resent_blocks;
  } else if (!is_seed && !skips) {
    stats_.pushed_values += block.range.elements;
    stats_.pushed_value_bytes += block.sent_bytes;
  }
  stats_.bytes_pushed += block.sent_bytes;
  outputs.push_back(std::move(send));
}

// Encodes into a copy, because the first view may be written to the weights while a
// repeated seed is still being sent.
std::shared_ptr<EncodeWork> Exchange::AskSeed(const Block& block) const {
  const auto id = static_cast<uint32_t>(&block - blocks_.data());
  GradientBlock seed = {.block = id,
                        .label = {.range = block.range, .step = 0, .epoch = epoch_},
                        .gradient = tensors_[block.range.tensor].weights};
  if (block.kind == MessageKind::kSeedState) {
    seed.gradient = SeedStateOf(block)->arrays[block.seed_array];
  }
  const size_t bytes = MaxBlockBytes(*options_.seed_codec, block.range.elements);
  return std::make_shared<EncodeWork>(
      EncodeWork::Options{.is_traced = false}, seed,
      EncodeWork::Dense{.codec = options_.seed_codec,
                        .checksum = options_.checksum,
                        .memory = pool_.Allocate(bytes).owner()});
}

GradientBlock Exchange::ContributionOf(const Block& block) const {
  const Tensor& tensor = tensors_[block.range.tensor];
  return {.block = static_cast<uint32_t>(&block - blocks_.data()),
          .label = {.range = block.range, .step = block.step, .epoch = epoch_},
          .gradient = tensor.gradient,
          .units = UnitsOf(tensor, block)};
}

}  // namespace syncline
