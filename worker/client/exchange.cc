#include "worker/client/exchange.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/base/check.h"
#include "comm/base/crc32c.h"

namespace syncline {
namespace {

// Seeds come before step 0; a step of their own keeps a late acknowledgement of a seed
// from passing for one of the first contribution.
constexpr uint64_t kSeedStep = ~uint64_t{0};

// A refusal that time heals is first repeated after so long, doubling up to the retry
// interval.
constexpr absl::Duration kFirstBackoff = absl::Milliseconds(5);

// A contribution that is held waits for other workers, which may take long: ask less
// often.
constexpr int kHeldPatience = 4;

std::vector<uint64_t> ElementCounts(const std::vector<std::span<float>>& weights) {
  std::vector<uint64_t> counts;
  for (const auto& tensor : weights) counts.push_back(tensor.size());
  return counts;
}

}  // namespace

Exchange::Exchange(const ExchangeOptions& options,
                   const std::vector<std::span<float>>& weights, BufferPool& pool)
    : options_(options),
      pool_(pool),
      encoder_(options, ElementCounts(weights), pool),
      shards_(options.shards),
      epoch_(options.epoch) {
  const std::vector<BlockRange> ranges = CutIntoBlocks(ElementCounts(weights));
  SYNCLINE_CHECK(ranges.size() == options_.shard_of_block.size());
  for (const auto& tensor : weights) tensors_.push_back({.weights = tensor});
  SYNCLINE_CHECK(options_.transfers.size() == weights.size());
  for (size_t i = 0; i < options_.frozen.size(); ++i) {
    tensors_[i].frozen = options_.frozen[i];
  }
  for (uint32_t id = 0; id < ranges.size(); ++id) {
    SYNCLINE_CHECK(options_.shard_of_block[id] < options_.shards);
    Tensor& tensor = tensors_[ranges[id].tensor];
    if (tensor.blocks++ == 0) tensor.first_block = id;
    blocks_.push_back({.range = ranges[id],
                       .shard = options_.shard_of_block[id],
                       .wanted = tensor.frozen ? 0 : options_.first_step});
  }
}

ExchangeOutputs Exchange::Start(absl::Duration now) {
  ExchangeOutputs outputs;
  for (uint32_t id = 0; id < blocks_.size(); ++id) {
    if (options_.role == SeedRole::kSeeder) {
      Enqueue(id, MessageKind::kSeed);
    } else {
      SendPull(id, now, outputs);
    }
  }
  for (uint32_t shard = 0; shard < shards_.size(); ++shard) Pump(shard, now, outputs);
  for (uint32_t tensor = 0; tensor < tensors_.size(); ++tensor)
    ReportIfReady(tensor, outputs);
  return outputs;
}

ExchangeOutputs Exchange::Push(uint32_t tensor, std::span<const float> gradient,
                               uint32_t samples, absl::Duration now) {
  ExchangeOutputs outputs;
  Tensor& state = tensors_[tensor];
  SYNCLINE_CHECK(state.ready && gradient.size() == state.weights.size());
  SYNCLINE_CHECK(!state.frozen);
  state.gradient = gradient;
  state.samples = samples;
  state.loss_scale = loss_scale_;
  state.ready = false;
  for (uint32_t id = state.first_block; id < state.first_block + state.blocks; ++id) {
    blocks_[id].wanted = blocks_[id].version + 1;
    Enqueue(id, MessageKind::kPush);
  }
  for (uint32_t shard = 0; shard < shards_.size(); ++shard) Pump(shard, now, outputs);
  ReportIfReady(tensor, outputs);  // a tensor without elements has no block to wait for
  return outputs;
}

void Exchange::SetPhase(Block& block, Phase phase) {
  const auto is_unheld = [](Phase p) { return p == Phase::kQueued || p == Phase::kSent; };
  if (is_unheld(block.phase)) --unheld_;
  if (is_unheld(phase)) ++unheld_;
  block.phase = phase;
}

void Exchange::Enqueue(uint32_t id, MessageKind kind) {
  Block& block = blocks_[id];
  block.kind = kind;
  SetPhase(block, Phase::kQueued);
  block.due = absl::InfiniteDuration();
  shards_[block.shard].queued.insert(id);
}

// A block larger than what is left of the window still goes when nothing else is under
// way.
void Exchange::Pump(uint32_t shard, absl::Duration now, ExchangeOutputs& outputs) {
  ShardQueue& queue = shards_[shard];
  while (!failed_ && !queue.queued.empty() && queue.window_used < options_.window_bytes) {
    const uint32_t id = *queue.queued.begin();
    queue.queued.erase(queue.queued.begin());
    SendBlock(id, now, outputs);
  }
}

void Exchange::SendBlock(uint32_t id, absl::Duration now, ExchangeOutputs& outputs) {
  Block& block = blocks_[id];
  const bool is_seed = block.kind == MessageKind::kSeed;
  ExchangeSend send{
      .shard = block.shard,
      .header = HeaderFor(id, block.kind, is_seed ? kSeedStep : block.version),
      .payload = is_seed ? EncodeSeed(block) : EncodeContribution(id)};
  send.borrows_gradient =
      std::any_of(send.payload.begin(), send.payload.end(),
                  [](const Slice& slice) { return slice.owner == nullptr; });
  send.header.samples = is_seed ? 0 : tensors_[block.range.tensor].samples;
  SetPhase(block, Phase::kSent);
  block.sent_epoch = epoch_;
  block.window_bytes = PayloadBytes(send.payload);
  block.due = now + options_.retry;
  if (send.borrows_gradient) ++block.borrowed_sends;
  if (block.attempts++ > 0) {
    ++stats_.resent_blocks;
  } else if (!is_seed) {
    stats_.pushed_values += block.range.elements;
    stats_.pushed_value_bytes += block.window_bytes;
  }
  shards_[block.shard].window_used += block.window_bytes;
  stats_.bytes_pushed += block.window_bytes;
  outputs.push_back(std::move(send));
}

void Exchange::SendPull(uint32_t id, absl::Duration now, ExchangeOutputs& outputs) {
  Block& block = blocks_[id];
  block.kind = block.phase == Phase::kHeld ? block.kind : MessageKind::kPull;
  SetPhase(block, Phase::kHeld);
  block.sent_epoch = epoch_;
  block.due = now + options_.retry * kHeldPatience;
  outputs.push_back(ExchangeSend{
      .shard = block.shard, .header = HeaderFor(id, MessageKind::kPull, block.wanted)});
}

// A copy: the first view may land in the weights while a repeated seed is still being
// sent.
Payload Exchange::EncodeSeed(const Block& block) const {
  const BlockLabel label{.range = block.range, .step = 0, .epoch = epoch_};
  const auto values = tensors_[block.range.tensor].weights.subspan(
      block.range.first_element, block.range.elements);
  return {Slice::Of(Gather(
      EncodeBlock(*options_.seed_codec, label, values, options_.checksum, pool_)))};
}

Payload Exchange::EncodeContribution(uint32_t id) {
  const Block& block = blocks_[id];
  const Tensor& tensor = tensors_[block.range.tensor];
  return encoder_.Encode(
      {.block = id,
       .label = {.range = block.range, .step = block.version, .epoch = epoch_},
       .gradient =
           tensor.gradient.subspan(block.range.first_element, block.range.elements),
       .loss_scale = tensor.loss_scale});
}

MessageHeader Exchange::HeaderFor(uint32_t id, MessageKind kind, uint64_t step) const {
  MessageHeader header;
  header.kind = static_cast<uint16_t>(kind);
  header.job = options_.job;
  header.rank = options_.rank;
  header.incarnation = options_.incarnation;
  header.block = id;
  header.epoch = epoch_;
  header.step = step;
  header.session_key = options_.session_key;
  header.shard = blocks_[id].shard;
  return header;
}

ExchangeOutputs Exchange::SendDone(uint32_t id) {
  ExchangeOutputs outputs;
  Block& block = blocks_[id];
  SYNCLINE_CHECK(block.borrowed_sends > 0);
  --block.borrowed_sends;
  ReportIfReady(block.range.tensor, outputs);
  return outputs;
}

ExchangeOutputs Exchange::OnMessage(const MessageHeader& header, ByteView payload,
                                    absl::Duration now) {
  ExchangeOutputs outputs;
  const bool is_ours = header.job == options_.job && header.rank == options_.rank &&
                       header.incarnation == options_.incarnation &&
                       header.session_key == options_.session_key &&
                       header.block < blocks_.size();
  if (failed_ || !is_ours) return outputs;
  switch (static_cast<MessageKind>(header.kind)) {
    case MessageKind::kAck:
      OnAck(header, now, outputs);
      break;
    case MessageKind::kPublish:
      OnPublish(header, payload, now, outputs);
      break;
    case MessageKind::kAverage:
      OnAverage(header, payload, outputs);
      break;
    case MessageKind::kRefuse:
      OnRefuse(header, now, outputs);
      break;
    default:
      return outputs;  // only workers send the other kinds
  }
  Pump(blocks_[header.block].shard, now, outputs);
  return outputs;
}

ExchangeOutputs Exchange::PullAverage(uint32_t tensor, absl::Duration now) {
  SYNCLINE_CHECK(average_missing_.empty());
  ExchangeOutputs outputs;
  const Tensor& asked = tensors_[tensor];
  average_.assign(asked.weights.size(), 0.0f);
  for (uint32_t i = 0; i < asked.blocks; ++i) {
    average_missing_.insert(asked.first_block + i);
  }
  SendAveragePulls(now, outputs);
  if (average_missing_.empty()) {
    outputs.push_back(ExchangeAveraged{.weights = std::move(average_)});
  }
  return outputs;
}

void Exchange::SendAveragePulls(absl::Duration now, ExchangeOutputs& outputs) {
  average_due_ =
      average_missing_.empty() ? absl::InfiniteDuration() : now + options_.retry;
  for (const uint32_t id : average_missing_) {
    outputs.push_back(ExchangeSend{
        .shard = blocks_[id].shard,
        .header = HeaderFor(id, MessageKind::kPullAverage, blocks_[id].version)});
  }
}

void Exchange::OnAverage(const MessageHeader& header, ByteView payload,
                         ExchangeOutputs& outputs) {
  const Block& block = blocks_[header.block];
  if (!average_missing_.contains(header.block)) return;
  const auto view = ParseBlock(payload, {block.range, header.step, header.epoch},
                               {options_.seed_codec});
  if (!view.ok()) return;  // asked for again
  const auto out =
      std::span(average_).subspan(block.range.first_element, block.range.elements);
  for (const TileView& tile : view->tiles) {
    SYNCLINE_CHECK(
        tile.codec->Decode(tile.bytes, out.subspan(tile.first_element, tile.elements))
            .ok());
  }
  average_missing_.erase(header.block);
  if (average_missing_.empty()) {
    outputs.push_back(ExchangeAveraged{.weights = std::move(average_)});
  }
}

// The block is no longer queued or unacknowledged.
void Exchange::LeaveWindow(uint32_t id, Phase next) {
  Block& block = blocks_[id];
  ShardQueue& queue = shards_[block.shard];
  if (block.phase == Phase::kSent) queue.window_used -= block.window_bytes;
  if (block.phase == Phase::kQueued) queue.queued.erase(id);
  SetPhase(block, next);
  block.due = absl::InfiniteDuration();
}

void Exchange::OnAck(const MessageHeader& header, absl::Duration now,
                     ExchangeOutputs& outputs) {
  Block& block = blocks_[header.block];
  const bool is_under_way = block.phase == Phase::kSent || block.phase == Phase::kQueued;
  const bool is_seed = block.kind == MessageKind::kSeed;
  if (!is_under_way || header.step != (is_seed ? kSeedStep : block.version)) return;
  stats_.progress_bytes += block.window_bytes;
  LeaveWindow(header.block, Phase::kHeld);
  block.attempts = 0;
  block.due = now + options_.retry * kHeldPatience;
  // The seeder, too, works with the published view, which may be rounded.
  if (is_seed) SendPull(header.block, now, outputs);
}

void Exchange::OnPublish(const MessageHeader& header, ByteView payload,
                         absl::Duration now, ExchangeOutputs& outputs) {
  Block& block = blocks_[header.block];
  stats_.bytes_pulled += payload.size();
  const bool is_awaited = block.phase != Phase::kIdle && header.step >= block.wanted;
  if (!is_awaited) return;
  switch (Land(header, payload, block)) {
    case Landing::kIgnored:
      return;  // asked for again by its due time
    case Landing::kDiverged:
      ++stats_.diverged_blocks;
      block.landed = false;
      LeaveWindow(header.block, Phase::kHeld);
      return SendPull(header.block, now, outputs);
    case Landing::kLanded:
      break;
  }
  LeaveWindow(header.block, Phase::kIdle);
  encoder_.Forget(header.block);
  block.version = header.step;
  block.landed = true;
  block.attempts = 0;
  stats_.progress_bytes += payload.size();
  TakeLossScale(header);
  ReportIfReady(block.range.tensor, outputs);
}

void Exchange::TakeLossScale(const MessageHeader& header) {
  const auto scale = std::bit_cast<float>(header.samples);
  if (header.step < loss_scale_version_ || !(scale > 0) || !std::isfinite(scale)) return;
  loss_scale_version_ = header.step;
  loss_scale_ = scale;
}

Exchange::Landing Exchange::Land(const MessageHeader& header, ByteView payload,
                                 const Block& block) {
  const bool is_next = block.landed && header.step == block.version + 1;
  if ((header.flags & kFlagUnchanged) != 0) {
    return is_next && payload.empty() ? Landing::kLanded : Landing::kIgnored;
  }
  const Transfer& transfer = options_.transfers[block.range.tensor].publish;
  const BlockLabel label{
      .range = block.range, .step = header.step, .epoch = header.epoch};
  const auto view = ParseBlock(payload, label, ViewCodecs(transfer));
  if (!view.ok()) return Landing::kIgnored;
  const auto is_delta = [&](const TileView& tile) {
    return transfer.compresses() && tile.codec == transfer.codec.get();
  };
  if (!is_next && std::ranges::any_of(view->tiles, is_delta)) return Landing::kIgnored;
  const auto weights = tensors_[block.range.tensor].weights.subspan(
      block.range.first_element, block.range.elements);
  for (const TileView& tile : view->tiles) {
    const auto out = weights.subspan(tile.first_element, tile.elements);
    // ParseBlock validated it.
    SYNCLINE_CHECK((is_delta(tile) ? tile.codec->DecodeAdd(tile.bytes, 1, out)
                                   : tile.codec->Decode(tile.bytes, out))
                       .ok());
    if (tile.view_crc && *tile.view_crc != Crc32c(std::as_bytes(out))) {
      return Landing::kDiverged;
    }
  }
  return Landing::kLanded;
}

// Weights as they are come densely, or in FP32 where deltas go.
CodecSet Exchange::ViewCodecs(const Transfer& publish) const {
  if (!publish.compresses()) return {publish.codec.get()};
  return {publish.codec.get(), options_.seed_codec};
}

void Exchange::ReportIfReady(uint32_t id, ExchangeOutputs& outputs) {
  Tensor& tensor = tensors_[id];
  if (tensor.ready || failed_) return;
  for (uint32_t b = tensor.first_block; b < tensor.first_block + tensor.blocks; ++b) {
    const Block& block = blocks_[b];
    if (block.phase != Phase::kIdle || !block.landed || block.borrowed_sends > 0) return;
  }
  tensor.ready = true;
  outputs.push_back(ExchangeReady{id});
}

void Exchange::OnRefuse(const MessageHeader& header, absl::Duration now,
                        ExchangeOutputs& outputs) {
  Block& block = blocks_[header.block];
  const auto code = static_cast<RefuseCode>(header.code);
  if (code == RefuseCode::kNoAverage) {
    if (average_missing_.empty()) return;
    average_missing_.clear();
    outputs.push_back(ExchangeAveraged{
        .status = absl::FailedPreconditionError(
            "the job keeps no averaged weights; its optimizer has neither ema_decay nor "
            "swa_start")});
    return;
  }
  if (block.phase == Phase::kIdle) return;  // an answer to a repetition
  switch (code) {
    case RefuseCode::kStaleEpoch: {
      const bool is_news = block.sent_epoch < header.epoch;
      epoch_ = std::max(epoch_, header.epoch);
      if (is_news) block.due = now;
      break;
    }
    case RefuseCode::kFutureEpoch:
    case RefuseCode::kNotSeeded:
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

absl::Duration Exchange::Backoff(const Block& block) const {
  return std::min(options_.retry, kFirstBackoff * (1 << std::min(block.attempts, 16)));
}

ExchangeOutputs Exchange::EpochChanged(uint64_t epoch, SeedRole role,
                                       absl::Duration now) {
  ExchangeOutputs outputs;
  epoch_ = std::max(epoch_, epoch);
  if (role == SeedRole::kReceiver || options_.first_step > 0) return outputs;
  // The seeder before us died. What it seeded and we have seen stays; the rest gets our
  // values.
  for (uint32_t id = 0; id < blocks_.size(); ++id) {
    if (!blocks_[id].landed && blocks_[id].kind == MessageKind::kPull) {
      Enqueue(id, MessageKind::kSeed);
    }
  }
  for (uint32_t shard = 0; shard < shards_.size(); ++shard) Pump(shard, now, outputs);
  return outputs;
}

ExchangeOutputs Exchange::Tick(absl::Duration now) {
  ExchangeOutputs outputs;
  for (uint32_t id = 0; id < blocks_.size() && !failed_; ++id) {
    Block& block = blocks_[id];
    if (block.due > now) continue;
    if (block.phase == Phase::kHeld) {
      SendPull(id, now, outputs);
    } else {
      LeaveWindow(id, Phase::kQueued);
      Enqueue(id, block.kind);
    }
  }
  for (uint32_t shard = 0; shard < shards_.size(); ++shard) Pump(shard, now, outputs);
  if (average_due_ <= now && !failed_) SendAveragePulls(now, outputs);
  return outputs;
}

size_t Exchange::MaxPayloadBytes(const MessageHeader& header) const {
  if (header.block >= blocks_.size()) return 0;
  const auto& [tensor, first, elements] = blocks_[header.block].range;
  switch (static_cast<MessageKind>(header.kind)) {
    case MessageKind::kPublish:
      return MaxBlockBytes(ViewCodecs(options_.transfers[tensor].publish), elements);
    case MessageKind::kAverage:
      return MaxBlockBytes(*options_.seed_codec, elements);
    default:
      return 0;
  }
}

uint64_t Exchange::step() const {
  uint64_t step = ~uint64_t{0};
  for (const Block& block : blocks_) {
    if (!tensors_[block.range.tensor].frozen) step = std::min(step, block.version);
  }
  return step == ~uint64_t{0} ? options_.first_step : step;
}

void Exchange::Fail(absl::Status status, ExchangeOutputs& outputs) {
  failed_ = true;
  outputs.push_back(ExchangeFailed{std::move(status)});
}

std::string Exchange::Where(uint32_t id) const {
  const BlockRange& range = blocks_[id].range;
  return absl::StrCat("tensor ", range.tensor, " elements [", range.first_element, ", ",
                      range.first_element + range.elements, ")");
}

}  // namespace syncline
