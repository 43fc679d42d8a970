#include "worker/client/exchange.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/base/check.h"

namespace syncline {
namespace {

// A refusal that time heals is first repeated after so long, doubling up to the retry
// interval.
constexpr absl::Duration kFirstBackoff = absl::Milliseconds(5);

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
      landing_(options),
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
  Tensor& state = tensors_[tensor];
  SYNCLINE_CHECK(gradient.size() == state.weights.size());
  state.gradient = gradient;
  state.samples = samples;
  state.skips = false;
  state.loss_scale = loss_scale_;
  return Contribute(tensor, now);
}

ExchangeOutputs Exchange::Skip(uint32_t tensor, absl::Duration now) {
  tensors_[tensor].gradient = {};
  tensors_[tensor].skips = true;
  return Contribute(tensor, now);
}

ExchangeOutputs Exchange::Contribute(uint32_t tensor, absl::Duration now) {
  ExchangeOutputs outputs;
  Tensor& state = tensors_[tensor];
  SYNCLINE_CHECK(state.ready && !state.frozen);
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
  const Tensor& tensor = tensors_[block.range.tensor];
  const bool skips = !is_seed && !parting_ && tensor.skips;
  ExchangeSend send{
      .shard = block.shard,
      .header = HeaderFor(id, block.kind, is_seed ? kSeedStep : block.version)};
  if (!skips) send.payload = is_seed ? EncodeSeed(block) : EncodeContribution(id);
  send.borrows_gradient =
      std::any_of(send.payload.begin(), send.payload.end(),
                  [](const Slice& slice) { return slice.owner == nullptr; });
  send.header.samples = is_seed || skips ? 0 : tensor.samples;
  if (parting_) send.header.flags = kFlagParting;
  SetPhase(block, Phase::kSent);
  wire_.Sent(now, encoder_.cost().time);
  block.sent_epoch = epoch_;
  block.window_bytes = PayloadBytes(send.payload);
  block.due = now + options_.retry;
  if (send.borrows_gradient) ++block.borrowed_sends;
  if (block.attempts++ > 0) {
    ++stats_.resent_blocks;
  } else if (!is_seed && !skips) {
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
  const PushEncoder::Contribution contribution = {
      .block = id,
      .label = {.range = block.range, .step = block.version, .epoch = epoch_},
      .gradient = tensor.gradient,
      .units = UnitsOf(tensor, block)};
  return parting_ ? encoder_.EncodeParting(contribution) : encoder_.Encode(contribution);
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

ExchangeOutputs Exchange::PullAverage(uint32_t tensor, absl::Duration now) {
  ExchangeOutputs outputs;
  const Tensor& asked = tensors_[tensor];
  average_.Begin({.first_block = asked.first_block,
                  .blocks = asked.blocks,
                  .elements = asked.weights.size()});
  SendAveragePulls(now, outputs);
  if (!average_.is_under_way()) {
    outputs.push_back(ExchangeAveraged{.weights = average_.Take()});
  }
  return outputs;
}

void Exchange::SendAveragePulls(absl::Duration now, ExchangeOutputs& outputs) {
  average_.AskedUntil(now + options_.retry);
  for (const uint32_t id : average_.missing()) {
    outputs.push_back(ExchangeSend{
        .shard = blocks_[id].shard,
        .header = HeaderFor(id, MessageKind::kPullAverage, blocks_[id].version)});
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

ExchangeOutputs Exchange::Part(absl::Duration now) {
  ExchangeOutputs outputs;
  parting_.emplace();
  for (uint32_t id = 0; id < tensors_.size(); ++id) {
    Tensor& tensor = tensors_[id];
    SYNCLINE_CHECK(tensor.ready);
    const bool has_pushed = tensor.samples > 0 && tensor.blocks > 0;
    if (!has_pushed) continue;
    tensor.loss_scale = loss_scale_;
    // All its blocks hold the same version, and with it the same rate.
    tensor.gradient = encoder_.Settle(id, UnitsOf(tensor, blocks_[tensor.first_block]));
    if (tensor.gradient.empty()) continue;
    for (uint32_t b = tensor.first_block; b < tensor.first_block + tensor.blocks; ++b) {
      parting_->insert(b);
      Enqueue(b, MessageKind::kPush);
    }
  }
  for (uint32_t shard = 0; shard < shards_.size(); ++shard) Pump(shard, now, outputs);
  if (parting_->empty()) outputs.push_back(ExchangeParted{});
  return outputs;
}

void Exchange::Parted(uint32_t id, ExchangeOutputs& outputs) {
  LeaveWindow(id, Phase::kIdle);
  parting_->erase(id);
  if (parting_->empty()) outputs.push_back(ExchangeParted{});
}

GradientUnits Exchange::UnitsOf(const Tensor& tensor, const Block& block) const {
  return {.loss_scale = tensor.loss_scale,
          .learning_rate = options_.follow_learning_rate ? block.learning_rate : 0};
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
      if (block.phase == Phase::kSent) wire_.Lost();
      LeaveWindow(id, Phase::kQueued);
      Enqueue(id, block.kind);
    }
  }
  for (uint32_t shard = 0; shard < shards_.size(); ++shard) Pump(shard, now, outputs);
  if (average_.due() <= now && !failed_) SendAveragePulls(now, outputs);
  return outputs;
}

size_t Exchange::MaxPayloadBytes(const MessageHeader& header) const {
  if (header.block >= blocks_.size()) return 0;
  const auto& [tensor, first, elements] = blocks_[header.block].range;
  switch (static_cast<MessageKind>(header.kind)) {
    case MessageKind::kPublish:
      return MaxBlockBytes(landing_.Codecs(tensor), elements);
    case MessageKind::kAverage:
      return MaxBlockBytes(*options_.seed_codec, elements);
    default:
      return 0;
  }
}

ExchangeStats Exchange::stats() const {
  ExchangeStats stats = stats_;
  stats.encoding = encoder_.cost();
  stats.decoding = landing_.cost();
  stats.residual_ratio = encoder_.residual_ratio();
  return stats;
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
