// The receiving part of exchange.h: handles the messages of shards.
#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/client/exchange.h"

namespace syncline {
namespace {

// Delay before a refused request for an average is sent again.
constexpr absl::Duration kAverageBackoff = absl::Milliseconds(10);

}  // namespace

size_t Exchange::MaxPayloadBytes(const MessageHeader& header) const {
  if (header.block >= blocks_.size()) return 0;
  const auto& [tensor, first, elements] = blocks_[header.block].range;
  switch (static_cast<MessageKind>(header.kind)) {
    case MessageKind::kPublish:
      return MaxBlockBytes(landing_.Codecs(tensor), elements);
    case MessageKind::kAverage:
    case MessageKind::kState:
      return MaxBlockBytes(*options_.seed_codec, elements);
    default:
      return 0;
  }
}

Exchange::Awaits Exchange::WhatIsAwaited(uint32_t shard) const {
  Awaits awaits = Awaits::kNothing;
  for (const Block& block : blocks_) {
    if (block.shard != shard || block.decoding != nullptr) continue;
    if (block.due != absl::InfiniteDuration()) continue;
    if (block.phase != Phase::kSent && block.phase != Phase::kHeld) continue;
    if (!block.is_noted) return Awaits::kShard;
    awaits = Awaits::kOthers;
  }
  const bool is_owed = std::ranges::any_of(
      average_.missing(), [&](uint32_t id) { return blocks_[id].shard == shard; });
  return is_owed ? Awaits::kShard : awaits;
}

ExchangeOutputs Exchange::Probe(uint32_t shard) {
  ExchangeOutputs outputs;
  for (uint32_t id = 0; id < blocks_.size() && outputs.empty(); ++id) {
    Block& block = blocks_[id];
    if (block.shard != shard || block.decoding != nullptr) continue;
    if (block.phase == Phase::kHeld) SendPull(id, outputs);
    if (block.phase == Phase::kSent && std::exchange(block.is_noted, false)) {
      outputs.push_back(ExchangeSend{
          .shard = shard, .header = HeaderFor(id, MessageKind::kPull, block.wanted)});
    }
  }
  return outputs;
}

ExchangeOutputs Exchange::OnMessage(const MessageHeader& header, Slice payload,
                                    absl::Duration now) {
  ExchangeOutputs outputs;
  const bool is_ours = header.job == options_.job && header.rank == options_.rank &&
                       header.incarnation == options_.incarnation &&
                       header.session_key == options_.session_key &&
                       header.block < blocks_.size();
  if (failed_ || !is_ours) return outputs;
  if (IsInUse(blocks_[header.block])) {
    Defer(header, std::move(payload));
    return outputs;
  }
  Handle(header, std::move(payload), now, outputs);
  PumpShard(blocks_[header.block].shard, now, outputs);
  EnterPhase();
  return outputs;
}

void Exchange::Handle(const MessageHeader& header, Slice payload, absl::Duration now,
                      ExchangeOutputs& outputs) {
  if (IsOfPredecessor(header)) return;
  switch (static_cast<MessageKind>(header.kind)) {
    case MessageKind::kAck:
      OnAck(header, now, outputs);
      break;
    case MessageKind::kPublish:
      OnPublish(header, std::move(payload), now, outputs);
      break;
    case MessageKind::kAverage:
    case MessageKind::kState:
      OnAverage(header, {payload.data, payload.size}, outputs);
      break;
    case MessageKind::kNoted:
      OnNoted(header);
      break;
    case MessageKind::kRefuse:
      OnRefuse(header, now, outputs);
      break;
    default:
      break;  // only workers send the other kinds
  }
}

// Whether the message answers a contribution or request, and comes from a server that was
// replaced. Such a server may still be alive, and not know the epoch in which its
// successor took over. Views that it published are valid all the same, because it had
// made them durable before.
bool Exchange::IsOfPredecessor(const MessageHeader& header) const {
  const auto kind = static_cast<MessageKind>(header.kind);
  const bool is_of_what_was_sent = kind == MessageKind::kAck ||
                                   kind == MessageKind::kNoted ||
                                   kind == MessageKind::kRefuse;
  const uint32_t shard = blocks_[header.block].shard;
  return is_of_what_was_sent && header.epoch < shards_[shard].first_epoch;
}

void Exchange::OnAck(const MessageHeader& header, absl::Duration now,
                     ExchangeOutputs& outputs) {
  Block& block = blocks_[header.block];
  if (!IsUnheld(block.phase) || header.step != StepOf(block)) return;
  stats_.progress_bytes += block.sent_bytes;
  if (block.phase == Phase::kSent) {
    const auto carried =
        wire_.Acknowledged({.bytes = block.sent_bytes, .more_comes = encodings_ > 0}, now,
                           encoder_.cost_here());
    if (carried) encoder_.Sent(carried->bytes, carried->time);
  }
  if (IsParting(header.block)) return Parted(header.block, outputs);
  Leave(header.block, Phase::kHeld);
  block.attempts = 0;
  block.is_noted = true;  // the shard sends the next version without a request
  if (block.kind != MessageKind::kPush) return OnSeedAck(header.block, outputs);
  if (options_.mode.has_quorum()) return OnQuorumAck(header, outputs);
  if (has_run_ahead_) OnHeldAhead(header.block, outputs);
}

void Exchange::OnHeldAhead(uint32_t id, ExchangeOutputs& outputs) {
  if (blocks_[id].version >= blocks_[id].wanted) return Finish(id, outputs);
  // A view that was published meanwhile may have been lost with a connection.
  SendPull(id, outputs);
}

void Exchange::OnSeedAck(uint32_t id, ExchangeOutputs& outputs) {
  Block& block = blocks_[id];
  // The seeder also uses the published view, which may be rounded.
  if (block.kind == MessageKind::kSeed) return SendPull(id, outputs);
  const bool is_last = ++block.seed_array == SeedStateOf(block)->arrays.size();
  Enqueue(id, is_last ? MessageKind::kSeed : MessageKind::kSeedState);
}

void Exchange::Parted(uint32_t id, ExchangeOutputs& outputs) {
  Leave(id, Phase::kIdle);
  parting_->erase(id);
  if (parting_->empty()) outputs.push_back(ExchangeParted{});
}

// Whether to write the view to the weights. In mode asp a view includes this worker's
// contribution only after its acknowledgement; earlier views answer earlier requests.
// Where workers may run ahead, every newer view is welcome.
bool Exchange::IsWelcome(const MessageHeader& header) const {
  const Block& block = blocks_[header.block];
  const bool is_fresh = header.step >= block.wanted;
  const bool is_own = options_.mode.is_async() && block.kind == MessageKind::kPush;
  if (is_own) return block.phase == Phase::kHeld && is_fresh;
  if (has_run_ahead_ && block.landed) return header.step > block.version;
  return block.phase != Phase::kIdle && is_fresh;
}

void Exchange::Finish(uint32_t id, ExchangeOutputs& outputs) {
  Block& block = blocks_[id];
  if (block.kind == MessageKind::kPush) ++block.step;
  Leave(id, Phase::kIdle);
  encoder_.Forget(id);
  block.attempts = 0;
  block.was_useless = false;
  ReportIfReady(block.range.tensor, outputs);
}

// The shard confirms that it will answer. If a block was sent, the shard has received it,
// and is making it durable.
void Exchange::OnNoted(const MessageHeader& header) {
  Block& block = blocks_[header.block];
  const bool answers_pull = header.step == block.wanted;
  const bool answers_sent =
      header.step == StepOf(block) || (answers_pull && block.kind != MessageKind::kPush);
  if (block.phase == Phase::kHeld && answers_pull) block.is_noted = true;
  if (block.phase == Phase::kSent && answers_sent) block.is_noted = true;
}

void Exchange::OnPublish(const MessageHeader& header, Slice payload, absl::Duration now,
                         ExchangeOutputs& outputs) {
  Block& block = blocks_[header.block];
  stats_.bytes_pulled += payload.size;
  if (IsOfQuorum(block)) return OnQuorumView(header, payload, now, outputs);
  if (IsParting(header.block) && Follows(header)) return Parted(header.block, outputs);
  if (!IsWelcome(header) || parting_) return;
  if (tensors_[block.range.tensor].ready) return Stash(header, payload);
  has_news_ = has_news_ || unheld_ == 0;
  if (tensors_[block.range.tensor].is_released) {
    return Have(header, payload.size, outputs);
  }
  std::shared_ptr<DecodeWork> work = AskLanding(header, std::move(payload));
  block.decoding = work.get();
  ++tensors_[block.range.tensor].decodings;
  ++decodings_;
  outputs.push_back(ExchangeDecode{std::move(work)});
}

void Exchange::TakeRates(const MessageHeader& header, Block& block) {
  const auto learning_rate = std::bit_cast<float>(header.shard);
  block.learning_rate = std::isfinite(learning_rate) ? learning_rate : 0;
  const auto scale = std::bit_cast<float>(header.samples);
  if (header.step < loss_scale_version_ || !(scale > 0) || !std::isfinite(scale)) return;
  loss_scale_version_ = header.step;
  loss_scale_ = scale;
}

void Exchange::ReportIfReady(uint32_t id, ExchangeOutputs& outputs) {
  Tensor& tensor = tensors_[id];
  const bool is_in_use = tensor.encodings > 0 || tensor.decodings > 0;
  if (tensor.ready || is_in_use || failed_) return;
  for (uint32_t b = tensor.first_block; b < tensor.first_block + tensor.blocks; ++b) {
    const Block& block = blocks_[b];
    if (block.phase != Phase::kIdle || !block.landed || block.borrowed_sends > 0) return;
  }
  tensor.ready = true;
  const bool is_of_quorum = tensor.blocks > 0 && IsOfQuorum(blocks_[tensor.first_block]);
  outputs.push_back(ExchangeReady{
      id, is_of_quorum ? std::optional(blocks_[tensor.first_block].step) : std::nullopt});
}

void Exchange::OnAverage(const MessageHeader& header, ByteView payload,
                         ExchangeOutputs& outputs) {
  const BlockLabel label = {blocks_[header.block].range, header.step, header.epoch};
  const bool is_state = header.kind == static_cast<uint16_t>(MessageKind::kState);
  const bool is_asked = is_state ? average_.array() == header.samples : !average_.array();
  if (!is_asked || !average_.missing().contains(header.block)) return;
  const Block& block = blocks_[header.block];
  // The state of all blocks must be that after the steps that this worker knows of.
  if (is_state && (!average_.IsOfOneVersion(header.step) || header.step != block.step)) {
    average_.Cancel();
    outputs.push_back(
        ExchangeAveraged{.status = absl::FailedPreconditionError(absl::StrCat(
                             Where(header.block), ": the optimizer's state is of step ",
                             header.step, ", this worker is at ", block.step,
                             ": it was pushed while its state was asked for; wait for it "
                             "and ask again"))});
    return;
  }
  average_.Land(header.block, label, payload, *options_.seed_codec);
  if (average_.missing().contains(header.block)) {
    return SendAveragePull(header.block, outputs);
  }
  stats_.progress_bytes += payload.size();
  if (!average_.is_under_way()) {
    outputs.push_back(ExchangeAveraged{.weights = average_.Take(),
                                       .updates = is_state ? header.shard : 0});
  }
}

void Exchange::OnRefuse(const MessageHeader& header, absl::Duration now,
                        ExchangeOutputs& outputs) {
  Block& block = blocks_[header.block];
  const auto code = static_cast<RefuseCode>(header.code);
  if (code == RefuseCode::kNoAverage) {
    if (!average_.is_under_way()) return;
    const auto array = average_.array();
    average_.Cancel();
    outputs.push_back(ExchangeAveraged{
        .status = absl::FailedPreconditionError(
            array ? absl::StrCat("tensor ", block.range.tensor,
                                 ": its optimizer keeps no array number ", *array)
                  : "the job keeps no averaged weights; its optimizer has neither "
                    "ema_decay nor swa_start")});
    return;
  }
  const bool passes = code == RefuseCode::kStaleEpoch || code == RefuseCode::kFutureEpoch;
  if (passes && average_.missing().contains(header.block)) {
    epoch_ = std::max(epoch_, code == RefuseCode::kStaleEpoch ? header.epoch : 0);
    average_.Refused(header.block, now + kAverageBackoff);
  }
  if (code == RefuseCode::kTooLate) return OnTooLate(header, outputs);
  if (block.phase == Phase::kIdle) return;  // the answer to a repeated message
  switch (code) {
    case RefuseCode::kStaleEpoch: {
      const bool is_news = block.sent_epoch < header.epoch;
      epoch_ = std::max(epoch_, header.epoch);
      if (is_news) block.due = now;
      break;
    }
    case RefuseCode::kNotSeeded:
      // Another worker had begun to seed: start again with the first array.
      if (block.kind == MessageKind::kSeedState || block.kind == MessageKind::kSeed) {
        if (block.phase == Phase::kSent) block.kind = FirstOfSeed(block);
      }
      [[fallthrough]];
    case RefuseCode::kFutureEpoch:
      block.due = std::min(block.due, now + Backoff(block));
      ++block.attempts;
      return;
    case RefuseCode::kNotMember:
      Fail(absl::AbortedError(absl::StrCat("worker ", options_.rank, " (incarnation ",
                                           options_.incarnation,
                                           ") was dropped from the job in epoch ",
                                           header.epoch, "; connect again to rejoin")),
           outputs);
      return;
    default:
      Fail(absl::InvalidArgumentError(
               absl::StrCat("shard ", header.shard, " refused ", Where(header.block),
                            " at step ", header.step, ": ", RefuseCodeName(code))),
           outputs);
      return;
  }
  if (block.due <= now) {
    ExchangeOutputs repeated = Tick(now);
    std::move(repeated.begin(), repeated.end(), std::back_inserter(outputs));
  }
}

void Exchange::Replaced(uint32_t shard, uint64_t epoch) {
  Disconnected(shard);
  shards_[shard].first_epoch = epoch;
  for (uint32_t id = 0; id < blocks_.size(); ++id) {
    const Block& block = blocks_[id];
    const bool is_contribution =
        block.phase == Phase::kHeld && block.kind == MessageKind::kPush;
    if (block.shard == shard && is_contribution) Enqueue(id, MessageKind::kPush);
  }
}

}  // namespace syncline
