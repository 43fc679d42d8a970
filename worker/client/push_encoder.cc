#include "worker/client/push_encoder.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "comm/base/check.h"
#include "comm/base/job_seed.h"
#include "comm/base/tiling.h"

namespace syncline {

PushEncoder::PushEncoder(const ExchangeOptions& options,
                         std::span<const uint64_t> elements, BufferPool& pool)
    : options_(options),
      pool_(pool),
      chooser_(options, elements),
      thresholds_(elements.size()) {
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

// What was not sent is encoded first: so both ways the memory has, in the end, what it had
// before and the gradient.
void PushEncoder::TakeBack(const Contribution& contribution) {
  const uint32_t tensor = contribution.label.range.tensor;
  const Transfer& transfer = options_.transfers[tensor].push;
  GradientMemory& memory = memories_[tensor];
  if (memory.residual().empty()) return;
  const uint64_t first_of_block = contribution.label.range.first_element;
  if (!transfer.CompressesAt(contribution.label.step)) {
    const uint32_t elements = contribution.label.range.elements;
    for (uint32_t tile = 0; tile < TilesOf(elements); ++tile) {
      const size_t first = size_t{tile} * kTileElements;
      memory.TakeBack(
          {.gradient = Read(contribution, first, TileElements(elements, tile)),
           .context = {.first_element = first_of_block + first},
           .units = contribution.units});
    }
    return;
  }
  if (!sent_.contains(contribution.block)) EncodeCompressed(contribution, transfer);
  const auto& [payload, epoch] = sent_.at(contribution.block);
  BlockLabel label = contribution.label;
  label.epoch = epoch;
  const Buffer bytes = Gather(payload);
  const auto view = ParseBlock(bytes.view(), label, transfer.Accepted());
  SYNCLINE_CHECK(view.ok());  // it is our own
  for (const TileView& tile : view->tiles) {
    std::vector<float> values(tile.elements);
    SYNCLINE_CHECK(tile.codec->Decode(tile.bytes, values).ok());
    memory.TakeBack({.gradient = values,
                     .context = {.first_element = first_of_block + tile.first_element},
                     .units = contribution.units});
  }
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

BlockLabel PushEncoder::Labelled(const Contribution& contribution) const {
  BlockLabel label = contribution.label;
  label.seed = SeedOfRank(options_.seed, options_.rank);
  return label;
}

std::shared_ptr<std::byte> PushEncoder::LentMemory(size_t bytes) const {
  return options_.push_memory ? options_.push_memory(bytes) : nullptr;
}

std::span<const float> PushEncoder::Read(const Contribution& contribution, size_t first,
                                         size_t elements) {
  if (contribution.gradient.dtype() != DType::kF32) scratch_.resize(kTileElements);
  return contribution.gradient.Read(contribution.label.range.first_element + first,
                                    elements, scratch_);
}

Payload PushEncoder::EncodeDense(const Contribution& contribution, const Codec& codec) {
  const BlockLabel label = Labelled(contribution);
  const ConstMemoryView& gradient = contribution.gradient;
  const auto [tensor, begin, elements] = label.range;
  const size_t bytes = MaxBlockBytes(codec, elements);
  std::shared_ptr<std::byte> memory = LentMemory(bytes);
  if (memory == nullptr && gradient.dtype() == DType::kF32) {
    return EncodeBlock(codec, label, gradient.AsFloats(begin, elements),
                       options_.checksum, pool_);
  }
  if (memory == nullptr) memory = pool_.Allocate(bytes).owner();
  const DenseBlock block = {.codec = codec,
                            .label = label,
                            .values = gradient.Part(begin, elements),
                            .checksum = options_.checksum};
  return EncodeInto(std::move(memory), block, scratch_);
}

// Found once a step, before the first block of the tensor changes what is kept.
float PushEncoder::ThresholdOf(const Contribution& contribution,
                               const Transfer& transfer) {
  const uint32_t tensor = contribution.label.range.tensor;
  const uint64_t step = contribution.label.step;
  const uint64_t count =
      transfer.TensorTopCount(contribution.gradient.size(), contribution.label.step);
  if (count == 0) return 0;
  Threshold& known = thresholds_[tensor];
  if (known.step == step) return known.value;
  if (!histogram_) histogram_.emplace();
  histogram_->Clear();
  const ConstMemoryView& gradient = contribution.gradient;
  if (gradient.dtype() != DType::kF32) scratch_.resize(kTileElements);
  const auto read = [&](size_t first, size_t n) {
    return gradient.Read(first, n, scratch_);
  };
  memories_[tensor].Preview(gradient.size(), read, contribution.units,
                            [&](std::span<const float> x) { histogram_->Add(x); });
  known = {.step = step, .value = histogram_->ThresholdFor(count)};
  return known.value;
}

void PushEncoder::EncodeTiles(const Contribution& contribution, const Transfer& transfer,
                              BlockWriter& writer) {
  const BlockLabel label = Labelled(contribution);
  const float threshold = ThresholdOf(contribution, transfer);
  for (uint32_t tile = 0; tile < TilesOf(label.range.elements); ++tile) {
    const uint64_t first = uint64_t{tile} * kTileElements;
    EncodeContext context = ContextAt(label, first);
    context.threshold = threshold;
    memories_[label.range.tensor].EncodeTile(
        transfer,
        {.gradient = Read(contribution, first, TileElements(label.range.elements, tile)),
         .context = context,
         .units = contribution.units},
        writer);
  }
}

Payload PushEncoder::EncodeCompressed(const Contribution& contribution,
                                      const Transfer& given) {
  const BlockLabel label = Labelled(contribution);
  const uint32_t tensor = label.range.tensor;
  const uint32_t elements = label.range.elements;
  if (chooser_.WantsToSee(tensor, label.step) && label.range.first_element == 0) {
    chooser_.Saw(tensor, Read(contribution, 0, TileElements(elements, 0)));
  }
  const Transfer& transfer = chooser_.TransferAt(tensor, label.step);
  const size_t bytes = MaxBlockBytes(given.Accepted(), elements);
  std::shared_ptr<std::byte> room = LentMemory(bytes);
  if (room == nullptr) room = pool_.Allocate(bytes).owner();
  BlockWriter writer(label, options_.checksum, std::move(room));
  const GradientMemory::Squares before = memories_[tensor].squares();
  const absl::Duration time_before = cost_.time;
  {
    const CodecTimer timer(options_.clock, elements, cost_);
    EncodeTiles(contribution, transfer, writer);
  }
  const GradientMemory::Squares& after = memories_[tensor].squares();
  squares_.gradient += after.gradient - before.gradient;
  squares_.residual += after.residual - before.residual;
  SentBlock& sent = sent_[contribution.block];
  sent = {.payload = Fitted(writer.Finish(), bytes), .epoch = label.epoch};
  if (chooser_.Chooses(tensor)) Measure(contribution, transfer, cost_.time - time_before);
  return sent.payload;
}

// Room is for the longest encoding; a short one is kept until the step is over, and must
// not keep that room from others.
Payload PushEncoder::Fitted(Payload payload, size_t room) const {
  const size_t bytes = PayloadBytes(payload);
  if (2 * bytes > room) return payload;
  std::shared_ptr<std::byte> memory = LentMemory(bytes);
  if (memory == nullptr) memory = pool_.Allocate(bytes).owner();
  size_t used = 0;
  for (const Slice& slice : payload) {
    std::memcpy(memory.get() + used, slice.data, slice.size);
    used += slice.size;
  }
  const std::byte* data = memory.get();
  return {Slice{data, bytes, std::move(memory)}};
}

// Servers decode with the same code, on machines like this one: so a tile is decoded here
// now and then.
void PushEncoder::Measure(const Contribution& contribution, const Transfer& transfer,
                          absl::Duration encoding) {
  constexpr uint64_t kDecodeEvery = 16;  // steps
  if (options_.clock == nullptr) return;
  const BlockLabel& label = contribution.label;
  const Payload& payload = sent_[contribution.block].payload;
  chooser_.Encoded(
      label.range.tensor,
      {.values = label.range.elements, .bytes = PayloadBytes(payload), .time = encoding});
  if (label.step % kDecodeEvery != 0 || label.range.first_element != 0) return;
  const Buffer bytes = Gather(payload);
  const auto view = ParseBlock(bytes.view(), label, transfer.Accepted());
  if (!view.ok()) return;
  const TileView& tile = view->tiles.front();
  std::vector<float> sum(tile.elements);
  CodecCost cost;
  {
    const CodecTimer timer(options_.clock, tile.elements, cost);
    SYNCLINE_CHECK(tile.codec->DecodeAdd(tile.bytes, 1, sum).ok());
  }
  chooser_.Decoded(label.range.tensor, {.values = cost.values, .time = cost.time});
}

}  // namespace syncline
