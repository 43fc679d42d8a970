#include "worker/client/push_encoder.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "comm/base/tiling.h"

namespace syncline {

PushEncoder::PushEncoder(const ExchangeOptions& options,
                         std::span<const uint64_t> elements, BufferPool& pool)
    : options_(options), pool_(pool) {
  for (size_t i = 0; i < elements.size(); ++i) {
    const Transfer& push = options.transfers[i].push;
    memories_.emplace_back(push.memory, push.compresses() ? elements[i] : 0);
  }
}

Payload PushEncoder::Encode(const Contribution& contribution) {
  const Transfer& transfer = options_.transfers[contribution.label.range.tensor].push;
  if (!transfer.compresses()) return EncodeDense(contribution, *transfer.codec);
  if (!transfer.CompressesAt(contribution.label.step)) {
    return EncodeDense(contribution, *transfer.dense);
  }
  const auto sent = sent_.find(contribution.block);
  if (sent == sent_.end()) return EncodeCompressed(contribution, transfer);
  const auto& [payload, epoch] = sent->second;
  if (epoch == contribution.label.epoch) return payload;
  return Relabel(payload, contribution.label.range.elements, contribution.label.epoch,
                 pool_);
}

std::span<const float> PushEncoder::Settle(uint32_t tensor, const GradientUnits& units) {
  const std::span<const float> left = memories_[tensor].Settle(units);
  const bool is_empty = std::ranges::all_of(left, [](float value) { return value == 0; });
  return is_empty ? std::span<const float>() : left;
}

double PushEncoder::residual_ratio() const {
  if (squares_.gradient <= 0) return 0;
  return std::sqrt(std::max(0.0, squares_.residual) / squares_.gradient);
}

// Rounding errors of different workers must be independent, or their mean keeps them.
BlockLabel PushEncoder::Labelled(const Contribution& contribution) const {
  BlockLabel label = contribution.label;
  label.seed = (uint64_t{options_.rank} + 1) << 32 | options_.job;
  return label;
}

std::shared_ptr<std::byte> PushEncoder::LentMemory(size_t bytes) const {
  return options_.push_memory ? options_.push_memory(bytes) : nullptr;
}

Payload PushEncoder::EncodeDense(const Contribution& contribution, const Codec& codec) {
  const BlockLabel label = Labelled(contribution);
  const std::span<const float> gradient = contribution.gradient;
  std::shared_ptr<std::byte> memory =
      LentMemory(MaxBlockBytes(codec, label.range.elements));
  if (memory == nullptr) {
    return EncodeBlock(codec, label, gradient, options_.checksum, pool_);
  }
  BlockWriter writer(label, options_.checksum, std::move(memory));
  for (uint32_t tile = 0; tile < TilesOf(gradient.size()); ++tile) {
    const size_t first = size_t{tile} * kTileElements;
    const auto values = gradient.subspan(first, TileElements(gradient.size(), tile));
    const MutableByteView room = writer.NextTile(codec);
    writer.EndTile(codec.Encode(values, {}, ContextAt(label, first), room));
  }
  return writer.Finish();
}

void PushEncoder::EncodeTiles(const Contribution& contribution, const Transfer& transfer,
                              GradientMemory& memory, BlockWriter& writer) const {
  const BlockLabel label = Labelled(contribution);
  const uint32_t elements = label.range.elements;
  for (uint32_t tile = 0; tile < TilesOf(elements); ++tile) {
    const uint64_t first = uint64_t{tile} * kTileElements;
    memory.EncodeTile(
        transfer,
        {.gradient = contribution.gradient.subspan(first, TileElements(elements, tile)),
         .context = ContextAt(label, first),
         .units = contribution.units},
        writer);
  }
}

Payload PushEncoder::EncodeCompressed(const Contribution& contribution,
                                      const Transfer& transfer) {
  const BlockLabel label = Labelled(contribution);
  const uint32_t elements = label.range.elements;
  const size_t bytes = MaxBlockBytes(transfer.Accepted(), elements);
  std::shared_ptr<std::byte> room = LentMemory(bytes);
  if (room == nullptr) room = pool_.Allocate(bytes).owner();
  BlockWriter writer(label, options_.checksum, std::move(room));
  GradientMemory& memory = memories_[label.range.tensor];
  squares_.gradient -= memory.squares().gradient;
  squares_.residual -= memory.squares().residual;
  {
    const CodecTimer timer(options_.clock, elements, cost_);
    EncodeTiles(contribution, transfer, memory, writer);
  }
  squares_.gradient += memory.squares().gradient;
  squares_.residual += memory.squares().residual;
  Sent& sent = sent_[contribution.block];
  sent = {.payload = writer.Finish(), .epoch = label.epoch};
  return sent.payload;
}

}  // namespace syncline
