#include "worker/client/push_encoder.h"

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

Payload PushEncoder::EncodeCompressed(const Contribution& contribution,
                                      const Transfer& transfer) {
  const BlockLabel label = Labelled(contribution);
  const uint32_t elements = label.range.elements;
  const size_t bytes = MaxBlockBytes(transfer.Accepted(), elements);
  std::shared_ptr<std::byte> room = LentMemory(bytes);
  if (room == nullptr) room = pool_.Allocate(bytes).owner();
  BlockWriter writer(label, options_.checksum, std::move(room));
  for (uint32_t tile = 0; tile < TilesOf(elements); ++tile) {
    const uint64_t first = uint64_t{tile} * kTileElements;
    memories_[label.range.tensor].EncodeTile(
        transfer,
        {.gradient = contribution.gradient.subspan(first, TileElements(elements, tile)),
         .context = ContextAt(label, first),
         .loss_scale = contribution.loss_scale},
        writer);
  }
  Sent& sent = sent_[contribution.block];
  sent = {.payload = writer.Finish(), .epoch = label.epoch};
  return sent.payload;
}

}  // namespace syncline
