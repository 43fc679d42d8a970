#include "server/shard/step.h"

#include <algorithm>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "comm/base/check.h"
#include "server/optimizer/reduce.h"

namespace syncline {
namespace {

// 16 KiB of FP32: the sum and a strip of every other stream share L1 and L2 comfortably.
// A multiple of the state storage's blocks.
constexpr uint32_t kStripElements = 4096;
static_assert(kTileElements % kStripElements == 0);

constexpr size_t kUsualWorkers = 16;  // more cost an allocation

std::span<float> Floats(const Buffer& buffer) {
  return {reinterpret_cast<float*>(buffer.data()), buffer.size() / sizeof(float)};
}

// sum += weighted sum, in rank order, of elements [first, first + sum.size()) of the
// block, which lie in one tile. Dense encodings can be cut anywhere (comm/codec/dense.h).
void AddContributions(const Codec& codec, std::span<const Contribution> contributions,
                      size_t first, std::span<float> sum) {
  const size_t element_bytes = codec.MaxEncodedBytes(1);
  const size_t tile = first / kTileElements;
  const size_t offset = first % kTileElements * element_bytes;
  absl::InlinedVector<WeightedBytes, kUsualWorkers> parts;
  for (const Contribution& contribution : contributions) {
    if (contribution.view.tiles.empty()) continue;
    parts.push_back(
        {contribution.view.tiles[tile].bytes.subspan(offset, sum.size() * element_bytes),
         contribution.weight});
  }
  SYNCLINE_CHECK(codec.DecodeAddAll(parts, sum).ok());
}

template <typename Visit>
void ForEachStrip(uint32_t elements, uint32_t strip, const Visit& visit) {
  for (uint32_t first = 0; first < elements; first += strip) {
    visit(first, std::min(strip, elements - first));
  }
}

}  // namespace

StepPass::StepPass(const ShardOptions& options, BufferPool& pool)
    : push_codec_(*options.push_codec),
      publish_codec_(*options.publish_codec),
      checksum_(options.checksum),
      seed_(options.job),
      publish_memory_(options.publish_memory),
      pool_(pool),
      sum_(Buffer::Allocate(sizeof(float) * kTileElements)) {}

std::span<float> StepPass::Sum(const BlockSum& block, size_t first, size_t count) {
  const std::span<float> sum = Floats(sum_).first(count);
  if (block.memory.accumulator.empty()) {
    std::ranges::fill(sum, 0.0f);
  } else {
    std::ranges::copy(block.memory.accumulator.subspan(first, count), sum.begin());
  }
  AddContributions(push_codec_, block.contributions, first, sum);
  if (block.scale != 1) {
    for (float& value : sum) value *= block.scale;
  }
  return sum;
}

void StepPass::Accumulate(const BlockSum& block) {
  ForEachStrip(block.range.elements, kStripElements, [&](uint32_t first, uint32_t count) {
    AddContributions(push_codec_, block.contributions, first,
                     block.memory.accumulator.subspan(first, count));
  });
}

Strip StepPass::OpenStrip(const TensorUpdate& update, const BlockSum& block, size_t first,
                          size_t count) {
  const std::span<float> gradient = Sum(block, first, count);
  const uint64_t first_element = block.range.first_element + first;
  const std::span<float> master = block.memory.weights.subspan(first, count);
  if (update.transforms != nullptr) {
    update.transforms->Apply({.gradient = gradient,
                              .master = master,
                              .first_element = first_element,
                              .gradient_scale = update.scalars.gradient_scale},
                             update.data.shape, update.transform_figures);
  }
  const std::vector<StoredSlot>& state = block.memory.state;
  pointers_.resize(state.size());
  for (size_t i = 0; i < state.size(); ++i) {
    if (state[i].type == StateType::kF32) {
      pointers_[i] = reinterpret_cast<float*>(state[i].memory) + first;
      continue;
    }
    while (scratch_.size() <= i) {
      scratch_.push_back(Buffer::Allocate(sizeof(float) * kTileElements));
    }
    const std::span<float> decoded = Floats(scratch_[i]).first(count);
    LoadState(state[i].type, state[i].kind, state[i].memory, first, decoded);
    pointers_[i] = decoded.data();
  }
  return {.gradient = gradient,
          .master = master,
          .state = pointers_,
          .first_element = first_element};
}

void StepPass::CloseStrip(const BlockSum& block, const Strip& strip, size_t first) {
  const std::vector<StoredSlot>& state = block.memory.state;
  for (size_t i = 0; i < state.size(); ++i) {
    if (state[i].type == StateType::kF32) continue;
    StoreState(state[i].type, state[i].kind, state[i].memory, first,
               {strip.state[i], strip.gradient.size()});
  }
}

std::vector<double> StepPass::Figures(const BlockSum& block,
                                      const JobReduction* reduction) {
  std::vector<double> figures(1 + (reduction == nullptr ? 0 : reduction->Figures()));
  ForEachStrip(block.range.elements, kTileElements, [&](uint32_t first, uint32_t count) {
    const std::span<const float> sum = Sum(block, first, count);
    figures[0] += SumOfSquares(sum);
    if (reduction == nullptr) return;
    pointers_.clear();
    for (const StoredSlot& slot : block.memory.state) {
      pointers_.push_back(reinterpret_cast<float*>(slot.memory) + first);
    }
    reduction->Reduce({.gradient = sum,
                       .master = block.memory.weights.subspan(first, count),
                       .state = pointers_,
                       .first_element = block.range.first_element + first},
                      std::span(figures).subspan(1));
  });
  return figures;
}

void StepPass::GatherTransforms(const TensorUpdate& update,
                                std::span<const BlockSum> blocks) {
  const GradientTransforms& transforms = *update.transforms;
  for (int round = 0; round < transforms.rounds(); ++round) {
    for (const BlockSum& block : blocks) {
      ForEachStrip(
          block.range.elements, kTileElements, [&](uint32_t first, uint32_t count) {
            transforms.Reduce(round,
                              {.gradient = Sum(block, first, count),
                               .master = block.memory.weights.subspan(first, count),
                               .first_element = block.range.first_element + first,
                               .gradient_scale = update.scalars.gradient_scale},
                              update.data.shape, update.transform_figures);
          });
    }
    transforms.Finish(round, update.data.shape, update.transform_figures);
  }
}

void StepPass::Gather(const TensorUpdate& update, std::span<const BlockSum> blocks) {
  if (update.transforms != nullptr) GatherTransforms(update, blocks);
  const TensorReduction* reduction = update.optimizer.tensor_reduction();
  if (reduction == nullptr) return;
  for (int round = 0; round < reduction->rounds(); ++round) {
    for (const BlockSum& block : blocks) {
      ForEachStrip(
          block.range.elements, kTileElements, [&](uint32_t first, uint32_t count) {
            reduction->Reduce(round, ScalarsAfter(update),
                              OpenStrip(update, block, first, count), update.data);
          });
    }
    reduction->Finish(round, ScalarsAfter(update), update.data);
  }
}

Payload StepPass::Apply(const TensorUpdate& update, const BlockSum& block,
                        const Publication& publication) {
  const size_t element_bytes = publish_codec_.MaxEncodedBytes(1);
  const StepScalars scalars = ScalarsAfter(update);
  BlockWriter writer = WriterFor(publication.label);
  for (uint32_t tile = 0; tile < TilesOf(block.range.elements); ++tile) {
    const uint32_t elements = TileElements(block.range.elements, tile);
    const MutableByteView out = writer.NextTile(publish_codec_);
    ForEachStrip(elements, kStripElements, [&](uint32_t first, uint32_t count) {
      const size_t offset = size_t{tile} * kTileElements + first;
      const Strip strip = OpenStrip(update, block, offset, count);
      update.optimizer.Apply(scalars, strip, update.data);
      CloseStrip(block, strip, offset);
      publish_codec_.Encode(strip.master, {}, ContextOf(publication, offset),
                            out.subspan(first * element_bytes));
    });
    writer.EndTile(elements * element_bytes);
  }
  return writer.Finish();
}

Payload StepPass::Encode(std::span<float> weights, const Publication& publication) {
  BlockWriter writer = WriterFor(publication.label);
  for (uint32_t tile = 0; tile < TilesOf(publication.label.range.elements); ++tile) {
    const size_t offset = size_t{tile} * kTileElements;
    const auto values =
        weights.subspan(offset, TileElements(publication.label.range.elements, tile));
    const MutableByteView room = writer.NextTile(publish_codec_);
    writer.EndTile(
        publish_codec_.Encode(values, {}, ContextOf(publication, offset), room));
  }
  return writer.Finish();
}

// Transforms have scaled the gradient already.
StepScalars StepPass::ScalarsAfter(const TensorUpdate& update) {
  StepScalars scalars = update.scalars;
  if (update.transforms != nullptr) scalars.gradient_scale = 1;
  return scalars;
}

EncodeContext StepPass::ContextOf(const Publication& publication, size_t offset) const {
  return {.seed = seed_,
          .step = publication.revision,
          .tensor = publication.label.range.tensor,
          .first_element = publication.label.range.first_element + offset};
}

BlockWriter StepPass::WriterFor(const BlockLabel& label) {
  const size_t bytes = MaxBlockBytes(publish_codec_, label.range.elements);
  std::shared_ptr<std::byte> memory;
  if (publish_memory_ != nullptr) memory = publish_memory_(bytes);
  if (memory == nullptr) memory = pool_.Allocate(bytes).owner();
  return BlockWriter(label, checksum_, std::move(memory));
}

}  // namespace syncline
