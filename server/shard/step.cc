#include "server/shard/step.h"

#include <algorithm>
#include <utility>

#include "comm/base/check.h"
#include "server/optimizer/reduce.h"

namespace syncline {
namespace {

// 16 KiB of FP32: the sum and a strip of every other stream share L1 and L2 comfortably.
constexpr uint32_t kStripElements = 4096;

std::span<float> Floats(const Buffer& buffer) {
  return {reinterpret_cast<float*>(buffer.data()), buffer.size() / sizeof(float)};
}

// sum = weighted sum, in rank order, of elements [first, first + sum.size()) of tile
// `tile`. Dense encodings can be cut anywhere (comm/codec/dense.h).
void SumStrip(const Codec& codec, std::span<const Contribution> contributions,
              const size_t tile, const size_t first, std::span<float> sum) {
  const size_t element_bytes = codec.MaxEncodedBytes(1);
  std::ranges::fill(sum, 0.0f);
  for (const Contribution& contribution : contributions) {
    const ByteView strip = contribution.view.tiles[tile].bytes.subspan(
        first * element_bytes, sum.size() * element_bytes);
    SYNCLINE_CHECK(codec.DecodeAdd(strip, contribution.weight, sum).ok());
  }
}

}  // namespace

void SetWeights(std::span<Contribution> contributions) {
  double samples = 0;
  for (const Contribution& one : contributions) samples += one.from.samples;
  for (Contribution& one : contributions) {
    one.weight = static_cast<float>(one.from.samples / samples);
  }
}

StepPass::StepPass(const ShardOptions& options, std::unique_ptr<Optimizer> optimizer,
                   BufferPool& pool)
    : push_codec_(*options.push_codec),
      publish_codec_(*options.publish_codec),
      checksum_(options.checksum),
      publish_memory_(options.publish_memory),
      optimizer_(std::move(optimizer)),
      pool_(pool),
      sum_(Buffer::Allocate(sizeof(float) * (options.mode == StepMode::kDecided
                                                 ? kTileElements
                                                 : kStripElements))) {}

std::vector<double> StepPass::SquareSums(uint32_t elements,
                                         std::span<const Contribution> contributions) {
  std::vector<double> sums;
  for (uint32_t tile = 0; tile < TilesOf(elements); ++tile) {
    const auto sum = Floats(sum_).first(TileElements(elements, tile));
    SumStrip(push_codec_, contributions, tile, 0, sum);
    sums.push_back(SumOfSquares(sum));
  }
  return sums;
}

Payload StepPass::Apply(const StepScalars& scalars,
                        std::span<const Contribution> contributions,
                        const BlockMemory& memory, const BlockLabel& label) {
  const size_t element_bytes = publish_codec_.MaxEncodedBytes(1);
  const int slots = optimizer_->StateSlots();
  BlockWriter writer = WriterFor(label);
  for (uint32_t tile = 0; tile < TilesOf(label.range.elements); ++tile) {
    const uint32_t elements = TileElements(label.range.elements, tile);
    const MutableByteView out = writer.NextTile();
    for (uint32_t first = 0; first < elements; first += kStripElements) {
      const size_t count = std::min(kStripElements, elements - first);
      const size_t offset = size_t{tile} * kTileElements + first;
      const auto sum = Floats(sum_).first(count);
      SumStrip(push_codec_, contributions, tile, first, sum);
      TileSpans strip = {.gradient = sum,
                         .master = memory.weights.subspan(offset, count)};
      for (int i = 0; i < slots; ++i) strip.state[i] = memory.state[i] + offset;
      optimizer_->Apply(scalars, strip);
      publish_codec_.Encode(strip.master, out.subspan(first * element_bytes));
    }
    writer.EndTile(elements * element_bytes);
  }
  return writer.Finish();
}

Payload StepPass::Encode(std::span<float> weights, const BlockLabel& label) {
  BlockWriter writer = WriterFor(label);
  for (uint32_t tile = 0; tile < TilesOf(label.range.elements); ++tile) {
    const auto values = weights.subspan(size_t{tile} * kTileElements,
                                        TileElements(label.range.elements, tile));
    writer.EndTile(publish_codec_.Encode(values, writer.NextTile()));
  }
  return writer.Finish();
}

BlockWriter StepPass::WriterFor(const BlockLabel& label) {
  const size_t bytes = MaxBlockBytes(publish_codec_, label.range.elements);
  std::shared_ptr<std::byte> memory;
  if (publish_memory_ != nullptr) memory = publish_memory_(bytes);
  if (memory == nullptr) memory = pool_.Allocate(bytes).owner();
  return BlockWriter(publish_codec_, label, checksum_, std::move(memory));
}

}  // namespace syncline
