#include "worker/client/exchange.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/base/check.h"
#include "comm/transport/message.h"

namespace syncline {
namespace {

// Delays before a block that was refused for a temporary reason is sent again. The delay
// doubles each time.
constexpr absl::Duration kFirstBackoff = absl::Milliseconds(5);
constexpr absl::Duration kLongestBackoff = absl::Seconds(1);

std::vector<uint64_t> ElementCounts(const std::vector<MemoryView>& weights) {
  std::vector<uint64_t> counts;
  for (const MemoryView& tensor : weights) counts.push_back(tensor.size());
  return counts;
}

}  // namespace

Exchange::Exchange(const ExchangeOptions& options, const std::vector<MemoryView>& weights,
                   BufferPool& pool)
    : options_(options),
      pool_(pool),
      encoder_(options, ElementCounts(weights), pool),
      landing_(options, pool),
      staleness_(options.mode.staleness),
      has_run_ahead_(options.mode.staleness > 0),
      shards_(options.shards),
      epoch_(options.epoch),
      catches_up_(options.mode.has_quorum()) {
  workspace_.trace = options_.trace;
  const std::vector<BlockRange> ranges = CutIntoBlocks(ElementCounts(weights));
  SYNCLINE_CHECK(ranges.size() == options_.shard_of_block.size());
  for (const MemoryView& tensor : weights) tensors_.push_back({.weights = tensor});
  SYNCLINE_CHECK(options_.transfers.size() == weights.size());
  for (size_t i = 0; i < options_.frozen.size(); ++i) {
    tensors_[i].frozen = options_.frozen[i];
  }
  for (uint32_t id = 0; id < ranges.size(); ++id) {
    SYNCLINE_CHECK(options_.shard_of_block[id] < options_.shards);
    Tensor& tensor = tensors_[ranges[id].tensor];
    if (tensor.blocks++ == 0) tensor.first_block = id;
    blocks_.push_back(
        {.range = ranges[id],
         .shard = options_.shard_of_block[id],
         .step = options_.first_step,
         .wanted = tensor.frozen || options_.mode.is_async() ? 0 : options_.first_step});
    if (!tensor.frozen) {
      shards_[blocks_[id].shard].front.Expect(id, options_.first_step);
    }
  }
}

ExchangeOutputs Exchange::Start(absl::Duration now) {
  ExchangeOutputs outputs;
  for (uint32_t id = 0; id < blocks_.size(); ++id) {
    if (options_.role == SeedRole::kSeeder) {
      Enqueue(id, FirstOfSeed(blocks_[id]));
    } else {
      SendPull(id, outputs);
    }
  }
  PumpAll(now, outputs);
  for (uint32_t tensor = 0; tensor < tensors_.size(); ++tensor)
    ReportIfReady(tensor, outputs);
  return outputs;
}

ExchangeOutputs Exchange::Push(uint32_t tensor, const ConstMemoryView& gradient,
                               uint32_t samples, absl::Duration now) {
  Tensor& state = tensors_[tensor];
  SYNCLINE_CHECK(gradient.size() == state.weights.size());
  state.gradient = gradient;
  state.samples = samples;
  state.skips = false;
  state.loss_scale = loss_scale_;
  state.rate_factor = state.next_rate_factor;
  return Contribute(tensor, now);
}

ExchangeOutputs Exchange::Skip(uint32_t tensor, absl::Duration now) {
  tensors_[tensor].gradient = {};
  tensors_[tensor].skips = true;
  return Contribute(tensor, now);
}

void Exchange::Release(uint32_t id) {
  Tensor& tensor = tensors_[id];
  SYNCLINE_CHECK(tensor.ready && options_.mode.is_lockstep());
  tensor.is_released = true;
  tensor.weights = MemoryView(TensorMemory{}, tensor.weights.size());
  for (uint32_t b = tensor.first_block; b < tensor.first_block + tensor.blocks; ++b) {
    blocks_[b].is_own = false;  // they are never the view
  }
}

ExchangeOutputs Exchange::Contribute(uint32_t tensor, absl::Duration now) {
  ExchangeOutputs outputs;
  Tensor& state = tensors_[tensor];
  SYNCLINE_CHECK(state.ready && !state.frozen);
  if (options_.mode.has_quorum()) return ContributeToQuorum(tensor, now);
  state.ready = false;
  for (uint32_t id = state.first_block; id < state.first_block + state.blocks; ++id) {
    LandStashed(id);
    blocks_[id].wanted = WantedAfter(blocks_[id]);
    Enqueue(id, MessageKind::kPush);
  }
  PumpAll(now, outputs);
  ReportIfReady(tensor, outputs);  // a tensor without elements has no block to wait for
  return outputs;
}

uint64_t Exchange::WantedAfter(const Block& block) const {
  if (options_.mode.is_async()) return block.version + 1;
  const uint64_t next = block.step + 1;
  return next - std::min(staleness_, next);
}

ExchangeOutputs Exchange::SetStaleness(uint64_t staleness, absl::Duration now) {
  ExchangeOutputs outputs;
  if (options_.mode.kind != SyncMode::Kind::kSsp) return outputs;
  staleness_ = staleness;
  has_run_ahead_ = has_run_ahead_ || staleness > 0;
  for (uint32_t id = 0; id < blocks_.size() && !failed_; ++id) {
    Block& block = blocks_[id];
    const bool is_pushed =
        block.phase != Phase::kIdle && block.kind == MessageKind::kPush;
    if (!is_pushed || IsParting(id)) continue;
    const uint64_t wanted = WantedAfter(block);
    if (wanted >= block.wanted) continue;
    block.wanted = wanted;
    if (block.phase == Phase::kHeld) OnHeldAhead(id, outputs);
  }
  PumpAll(now, outputs);
  return outputs;
}

ExchangeOutputs Exchange::Settle(uint32_t tensor, absl::Duration now) {
  ExchangeOutputs outputs;
  Tensor& state = tensors_[tensor];
  SYNCLINE_CHECK(state.ready && !state.frozen);
  if (options_.mode.has_quorum()) return SettleWithQuorum(tensor, now);
  const bool is_async = options_.mode.is_async();
  state.ready = false;
  for (uint32_t id = state.first_block; id < state.first_block + state.blocks; ++id) {
    Block& block = blocks_[id];
    LandStashed(id);
    block.wanted = is_async ? block.version : block.step;
    block.was_useless = is_async;  // asks for a view even if there is no newer version
    if (is_async || block.version < block.wanted) SendPull(id, outputs);
  }
  PumpAll(now, outputs);
  ReportIfReady(tensor, outputs);
  return outputs;
}

void Exchange::Enqueue(uint32_t id, MessageKind kind) {
  Block& block = blocks_[id];
  block.kind = kind;
  has_news_ = false;
  SetPhase(block, Phase::kQueued);
  block.due = absl::InfiniteDuration();
  shards_[block.shard].queued.insert(id);
}

// Requests the block's view. Without a connection, Connected sends the request.
void Exchange::SendPull(uint32_t id, ExchangeOutputs& outputs) {
  Block& block = blocks_[id];
  if (block.decoding != nullptr) {  // decide after this view is decoded
    block.due = absl::ZeroDuration();
    return;
  }
  block.kind = block.phase == Phase::kHeld ? block.kind : MessageKind::kPull;
  SetPhase(block, Phase::kHeld);
  block.sent_epoch = epoch_;
  block.due = absl::InfiniteDuration();
  block.is_noted = false;
  if (!shards_[block.shard].is_connected) return;
  ExchangeSend send{.shard = block.shard,
                    .header = HeaderFor(id, MessageKind::kPull, block.wanted)};
  if (block.was_useless) send.header.flags = kFlagResend;
  if (MayHoldView(block)) {
    if (digest_room_ == 0) {  // the next Tick sends the request
      block.due = absl::ZeroDuration();
      return;
    }
    digest_room_ -= std::min<size_t>(digest_room_, block.range.elements);
    send.header.flags = kFlagHeld;
    SetDigest(send.header, landing_.Digest(block.range, WeightsOf(block)));
  }
  outputs.push_back(std::move(send));
}

// Whether the worker's own weights may be the view. Not within a host: there views are
// read in place, which costs less than a digest.
bool Exchange::MayHoldView(const Block& block) const {
  return block.is_own && !block.was_useless &&
         options_.receiver == ReceiverPlace::kNetwork;
}

uint64_t Exchange::StepOf(const Block& block) {
  if (block.kind == MessageKind::kSeedState) return kSeedStep - 1 - block.seed_array;
  return block.kind == MessageKind::kSeed ? kSeedStep : block.step;
}

const SeedState* Exchange::SeedStateOf(const Block& block) const {
  if (options_.seed_states.empty()) return nullptr;
  const SeedState& state = options_.seed_states[block.range.tensor];
  return state.updates > 0 && !state.arrays.empty() ? &state : nullptr;
}

// Returns the kind of the first message of a seed. A seed is the optimizer's state, array
// by array, if there is one, and then the weights.
MessageKind Exchange::FirstOfSeed(Block& block) const {
  block.seed_array = 0;
  return SeedStateOf(block) ? MessageKind::kSeedState : MessageKind::kSeed;
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

std::vector<ByteView> Exchange::UnfinishedGradients() const {
  std::vector<ByteView> gradients;
  for (const Tensor& tensor : tensors_) {
    if (!tensor.ready && !tensor.gradient.empty()) {
      gradients.push_back(tensor.gradient.bytes());
    }
  }
  return gradients;
}

ExchangeOutputs Exchange::PullAverage(uint32_t tensor) {
  return Pull(tensor, std::nullopt);
}

ExchangeOutputs Exchange::PullState(uint32_t tensor, uint32_t array) {
  return Pull(tensor, array);
}

ExchangeOutputs Exchange::Pull(uint32_t tensor, std::optional<uint32_t> array) {
  ExchangeOutputs outputs;
  const Tensor& asked = tensors_[tensor];
  average_.Begin({.first_block = asked.first_block,
                  .blocks = asked.blocks,
                  .elements = asked.weights.size(),
                  .array = array});
  for (const uint32_t id : average_.missing()) SendAveragePull(id, outputs);
  if (!average_.is_under_way()) {
    outputs.push_back(ExchangeAveraged{.weights = average_.Take()});
  }
  return outputs;
}

void Exchange::SendAveragePull(uint32_t id, ExchangeOutputs& outputs) {
  const Block& block = blocks_[id];
  if (!shards_[block.shard].is_connected) return;
  const auto array = average_.array();
  ExchangeSend send{
      .shard = block.shard,
      .header = HeaderFor(id, array ? MessageKind::kPullState : MessageKind::kPullAverage,
                          block.version)};
  send.header.samples = array.value_or(0);
  // The same version may be requested twice, because an answer may have been unusable.
  send.header.flags = kFlagResend;
  outputs.push_back(std::move(send));
}

// Ends the block's message under way.
void Exchange::Leave(uint32_t id, Phase next) {
  Block& block = blocks_[id];
  SetPhase(block, next);
  block.due = absl::InfiniteDuration();
}

ExchangeOutputs Exchange::Connected(uint32_t shard, absl::Duration now) {
  ExchangeOutputs outputs;
  shards_[shard].is_connected = true;
  for (uint32_t id = 0; id < blocks_.size() && !failed_; ++id) {
    Block& block = blocks_[id];
    if (block.shard != shard) continue;
    if (block.phase == Phase::kHeld) SendPull(id, outputs);
    if (block.phase != Phase::kSent) continue;
    wire_.Lost();
    Enqueue(id, block.kind);
  }
  for (const uint32_t id : average_.missing()) {
    if (blocks_[id].shard == shard) SendAveragePull(id, outputs);
  }
  PumpShard(shard, now, outputs);
  return outputs;
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
    // All blocks of the tensor hold the same version, and therefore the same rate.
    tensor.gradient = encoder_.Settle(id, UnitsOf(tensor, blocks_[tensor.first_block]));
    if (tensor.weights.device() != nullptr && !encoder_.kept_status().ok()) {
      Fail(encoder_.kept_status(), outputs);
      return outputs;
    }
    if (tensor.gradient.empty()) continue;
    for (uint32_t b = tensor.first_block; b < tensor.first_block + tensor.blocks; ++b) {
      parting_->insert(b);
      Enqueue(b, MessageKind::kPush);
    }
  }
  PumpAll(now, outputs);
  if (parting_->empty()) outputs.push_back(ExchangeParted{});
  return outputs;
}

GradientUnits Exchange::UnitsOf(const Tensor& tensor, const Block& block) const {
  const float rate = block.learning_rate * tensor.rate_factor;
  return {.loss_scale = tensor.loss_scale,
          .learning_rate = options_.follow_learning_rate ? rate : 0};
}

absl::Duration Exchange::Backoff(const Block& block) const {
  return std::min(kLongestBackoff, kFirstBackoff * (1 << std::min(block.attempts, 16)));
}

ExchangeOutputs Exchange::EpochChanged(uint64_t epoch, SeedRole role,
                                       absl::Duration now) {
  ExchangeOutputs outputs;
  epoch_ = std::max(epoch_, epoch);
  if (role == SeedRole::kReceiver || options_.first_step > 0) return outputs;
  // The previous seeder died. Blocks whose views have arrived were seeded by it, and stay
  // so. This worker seeds the other ones.
  for (uint32_t id = 0; id < blocks_.size(); ++id) {
    if (!blocks_[id].landed && blocks_[id].kind == MessageKind::kPull)
      Enqueue(id, FirstOfSeed(blocks_[id]));
  }
  PumpAll(now, outputs);
  return outputs;
}

ExchangeOutputs Exchange::Tick(absl::Duration now) {
  ExchangeOutputs outputs;
  device_status_.Update(encoder_.kept_status());
  if (!device_status_.ok() && !failed_) Fail(device_status_, outputs);
  digest_room_ = kDigestElements;
  for (uint32_t id = 0; id < blocks_.size() && !failed_; ++id) {
    Block& block = blocks_[id];
    if (block.due > now || block.decoding != nullptr) continue;
    if (block.phase == Phase::kHeld) {
      SendPull(id, outputs);
    } else {
      if (block.phase == Phase::kSent) wire_.Lost();
      Enqueue(id, block.kind);
    }
  }
  for (const uint32_t id : average_.TakeDue(now)) SendAveragePull(id, outputs);
  PumpAll(now, outputs);
  return outputs;
}

ExchangeStats Exchange::stats() const {
  ExchangeStats stats = stats_;
  stats.encoding = encoder_.cost();
  stats.decoding = decoding_cost_;
  stats.residual_ratio = encoder_.residual_ratio();
  return stats;
}

uint64_t Exchange::step() const {
  uint64_t step = ~uint64_t{0};
  for (const Block& block : blocks_) {
    if (!tensors_[block.range.tensor].frozen) step = std::min(step, block.step);
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
