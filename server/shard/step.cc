#include "server/shard/step.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "comm/base/check.h"
#include "comm/base/crc32c.h"
#include "comm/base/status.h"
#include "server/optimizer/reduce.h"
#include "server/optimizer/transforms.h"

namespace syncline {
namespace {

// 16 KiB of FP32, so that the sum and a strip of every other stream fit into L1 and L2. A
// multiple of the blocks of the state storage.
constexpr uint32_t kStripElements = 4096;
static_assert(kTileElements % kStripElements == 0);

// Workers compare their view with the server's at every multiple of this version.
constexpr uint64_t kViewCheckSteps = 64;

constexpr size_t kUsualWorkers = 16;  // more than that allocate

// Returns the sign of a value; NaN and zero stay as they are.
float SignOf(float value) { return value > 0 ? 1.0f : value < 0 ? -1.0f : value; }
float VoteOf(float value, Infinity infinity) {
  const bool is_kept = infinity == Infinity::kKept && std::isinf(value);
  return is_kept ? value : SignOf(value);
}

std::span<float> Floats(const Buffer& buffer) {
  return {reinterpret_cast<float*>(buffer.data()), buffer.size() / sizeof(float)};
}

struct VoteSum {
  std::span<float> votes = {};
  std::span<float> one = {};  // scratch for one contribution
  Infinity infinity = Infinity::kVotes;
};

// Returns the bytes of elements [first, first + count), which are in one tile.
ByteView BytesOf(const TileView& tile, size_t first, size_t count) {
  if (count == tile.elements) return tile.bytes;
  const size_t width = tile.codec->MaxEncodedBytes(1);  // a strip (comm/codec/dense.h)
  return tile.bytes.subspan(first % kTileElements * width, count * width);
}

// Adds the sign of each contribution, whatever its number of samples. The sums are
// integers, so neither order nor rounding can make or break a tie. Tiles that travel
// densely vote as others do.
void AddVotes(std::span<const Contribution> contributions, size_t first, VoteSum sum) {
  for (const Contribution& contribution : contributions) {
    if (contribution.view.tiles.empty()) continue;
    const TileView& tile = contribution.view.tiles[first / kTileElements];
    const ByteView bytes = BytesOf(tile, first, sum.votes.size());
    if (!tile.codec->Decode(bytes, sum.one).ok()) continue;  // see AddContributions
    for (size_t i = 0; i < sum.votes.size(); ++i) {
      sum.votes[i] += VoteOf(sum.one[i], sum.infinity);
    }
  }
}

// Adds the encoded elements [first, first + sum.size()), which are in one tile, in the
// order of the contributions. Consecutive contributions with the same codec share one
// pass over the sum.
//
// All of them were valid when they arrived. One that is invalid now was rewritten by its
// sender, in the memory that it lends. Such a worker may spoil its own job, whose
// gradient becomes zero here, but must not end the server with all jobs.
void AddContributions(std::span<const Contribution> contributions, size_t first,
                      std::span<float> sum) {
  absl::InlinedVector<WeightedBytes, kUsualWorkers> parts;
  const Codec* codec = nullptr;
  const auto add = [&] {
    if (codec != nullptr && !codec->DecodeAddAll(parts, sum).ok()) {
      std::ranges::fill(sum, 0.0f);
    }
    parts.clear();
  };
  for (const Contribution& contribution : contributions) {
    if (contribution.view.tiles.empty()) continue;
    const TileView& tile = contribution.view.tiles[first / kTileElements];
    if (tile.codec != codec) add();
    codec = tile.codec;
    parts.push_back({BytesOf(tile, first, sum.size()), contribution.weight});
  }
  add();
}

// Returns the basis in which means of senders are taken; null if it is that of values.
const CodecBasis* BasisOf(const Transfer& push) {
  return push.mean_of_senders ? push.codec->basis() : nullptr;
}

// Elements of one contribution, which are in one tile of a tensor.
struct Part {
  const TileView& tile;
  size_t first = 0;            // in the block
  uint64_t first_element = 0;  // in the tensor
};

// Decodes values, or coefficients if there is a basis. Tiles that travel densely have
// coefficients, too.
absl::Status DecodeIn(const CodecBasis* basis, const Part& part, std::span<float> out) {
  const Codec& codec = *part.tile.codec;
  const ByteView bytes = BytesOf(part.tile, part.first, out.size());
  if (basis != nullptr && codec.basis() != nullptr) {
    return codec.basis()->DecodeCoefficients(bytes, part.first_element, out);
  }
  SYNCLINE_RETURN_IF_ERROR(codec.Decode(bytes, out));
  if (basis != nullptr) basis->ToCoefficients(part.first_element, out);
  return absl::OkStatus();
}

// Returns the strip size in which a tile can be summed: short, unless an encoding cannot
// be cut.
uint32_t StripOf(const Transfer& push, const BlockSum& block, size_t tile) {
  if (BasisOf(push) != nullptr) return kTileElements;
  for (const Contribution& one : block.contributions) {
    if (one.view.tiles.empty()) continue;
    if (one.view.tiles[tile].codec->traits().strip > 1) return kTileElements;
  }
  return kStripElements;
}

bool Fits(std::span<const float> values, float largest) {
  if (largest == std::numeric_limits<float>::max()) return true;
  return std::ranges::all_of(
      values, [largest](float value) { return std::abs(value) <= largest; });
}

template <typename Visit>
void ForEachStrip(uint32_t elements, uint32_t strip, const Visit& visit) {
  for (uint32_t first = 0; first < elements; first += strip) {
    visit(first, std::min(strip, elements - first));
  }
}

}  // namespace

StepPass::StepPass(const ShardOptions& options, BufferPool& pool)
    : transfers_(options.transfers),
      fp32_(*options.seed_codec),
      checksum_(options.checksum),
      seed_(options.seed),
      publish_memory_(options.publish_memory),
      pool_(pool),
      sum_(Buffer::Allocate(sizeof(float) * kTileElements)) {}

std::span<float> StepPass::Sum(const BlockSum& block, size_t first, size_t count,
                               Infinity infinity) {
  const std::span<float> sum = Floats(sum_).first(count);
  if (!block.given.empty()) {
    std::ranges::copy(block.given.subspan(first, count), sum.begin());
    return sum;
  }
  if (block.memory.accumulator.empty()) {
    std::ranges::fill(sum, 0.0f);
  } else {
    std::ranges::copy(block.memory.accumulator.subspan(first, count), sum.begin());
  }
  Add(block, first, sum, infinity);
  if (Votes(block)) {
    for (float& value : sum) value = VoteOf(value, infinity);
  } else if (block.scale != 1) {
    for (float& value : sum) value *= block.scale;
  }
  if (!block.shown.empty() && !Votes(block)) {
    CompensateDelay(block.compensation,
                    {.gradient = sum,
                     .master = block.memory.weights.subspan(first, count),
                     .backup = block.shown.subspan(first, count)});
  }
  if (!block.written.empty()) {
    std::ranges::copy(sum, block.written.subspan(first, count).begin());
  }
  return sum;
}

void StepPass::Add(const BlockSum& block, size_t first, std::span<float> sum,
                   Infinity infinity) {
  if (transfers_[block.range.tensor].push.mean_of_senders) {
    return AddMeansOfSenders(block, first, sum);
  }
  if (!Votes(block)) return AddContributions(block.contributions, first, sum);
  if (one_.size() == 0) one_ = Buffer::Allocate(sizeof(float) * kTileElements);
  AddVotes(block.contributions, first,
           {.votes = sum, .one = Floats(one_).first(sum.size()), .infinity = infinity});
}

// REQUIRES: no accumulator, because it does not show who sent what (ValidateJob).
void StepPass::AddMeansOfSenders(const BlockSum& block, size_t first,
                                 std::span<float> sum) {
  SYNCLINE_CHECK(block.memory.accumulator.empty());
  if (one_.size() == 0) one_ = Buffer::Allocate(sizeof(float) * kTileElements);
  if (sent_.size() == 0) sent_ = Buffer::Allocate(sizeof(float) * kTileElements);
  const std::span<float> one = Floats(one_).first(sum.size());
  const std::span<float> sent = Floats(sent_).first(sum.size());
  std::ranges::fill(sent, 0.0f);
  const CodecBasis* const basis = BasisOf(transfers_[block.range.tensor].push);
  const uint64_t first_element = block.range.first_element + first;
  // What workers hand over when they leave is added without a share in the divisor, as in
  // a plain mean (Block::Samples).
  const bool others_count = std::ranges::any_of(
      block.contributions,
      [](const Contribution& one) { return !one.from.parting && one.from.samples > 0; });
  for (const Contribution& contribution : block.contributions) {
    if (contribution.view.tiles.empty()) continue;
    const Part part = {contribution.view.tiles[first / kTileElements], first,
                       first_element};
    if (!DecodeIn(basis, part, one).ok()) continue;  // see AddContributions
    const bool counts = !contribution.from.parting || !others_count;
    for (size_t i = 0; i < sum.size(); ++i) {
      sum[i] += contribution.weight * one[i];
      sent[i] += one[i] == 0 || !counts ? 0.0f : contribution.weight;
    }
  }
  for (size_t i = 0; i < sum.size(); ++i) sum[i] /= sent[i] == 0 ? 1.0f : sent[i];
  if (basis != nullptr) basis->FromCoefficients(first_element, sum);
}

void StepPass::Accumulate(const BlockSum& block) {
  for (uint32_t tile = 0; tile < TilesOf(block.range.elements); ++tile) {
    const uint32_t elements = TileElements(block.range.elements, tile);
    const uint32_t longest = StripOf(transfers_[block.range.tensor].push, block, tile);
    ForEachStrip(elements, longest, [&](uint32_t first, uint32_t count) {
      const size_t offset = size_t{tile} * kTileElements + first;
      Add(block, offset, block.memory.accumulator.subspan(offset, count),
          Infinity::kKept);
    });
  }
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
    LoadState(state[i], first, decoded);
    pointers_[i] = decoded.data();
  }
  return {.gradient = gradient,
          .master = master,
          .state = pointers_,
          .first_element = first_element};
}

void StepPass::CloseStrip(const TensorUpdate& update, const BlockSum& block,
                          const Strip& strip) {
  const size_t first = strip.first_element - block.range.first_element;
  const std::vector<StoredSlot>& state = block.memory.state;
  for (size_t i = 0; i < state.size(); ++i) {
    if (state[i].type == StateType::kF32) continue;
    StoreState(state[i], first, {strip.state[i], strip.gradient.size()},
               {.seed = seed_,
                .update = update.scalars.update,
                .tensor = block.range.tensor,
                .slot = static_cast<uint32_t>(i),
                .first_element = strip.first_element});
  }
}

std::vector<double> StepPass::Figures(const BlockSum& block,
                                      const JobReduction* reduction) {
  std::vector<double> figures(1 + (reduction == nullptr ? 0 : reduction->Figures()));
  ForEachStrip(block.range.elements, kTileElements, [&](uint32_t first, uint32_t count) {
    const std::span<const float> sum = Sum(block, first, count, Infinity::kKept);
    const double squares = SumOfSquares(sum);
    figures[0] += Votes(block) && std::isfinite(squares) ? 0 : squares;
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

void StepPass::StepTile(const TensorUpdate& update, const BlockSum& block, uint32_t tile,
                        absl::FunctionRef<void(size_t, std::span<const float>)> stepped) {
  const StepScalars scalars = ScalarsAfter(update);
  const uint32_t elements = TileElements(block.range.elements, tile);
  const uint32_t longest = StripOf(transfers_[block.range.tensor].push, block, tile);
  ForEachStrip(elements, longest, [&](uint32_t first, uint32_t count) {
    const size_t offset = size_t{tile} * kTileElements + first;
    const Strip strip = OpenStrip(update, block, offset, count);
    update.optimizer.Apply(scalars, strip, update.data);
    CloseStrip(update, block, strip);
    stepped(first, strip.master);
  });
}

Payload StepPass::Apply(const TensorUpdate& update, const BlockSum& block,
                        const Publication& publication) {
  const Transfer& transfer = PublishOf(publication.label);
  const Codec& codec = *transfer.codec;
  const size_t element_bytes = codec.MaxEncodedBytes(1);
  const bool deltas = !block.memory.view.empty();
  BlockWriter writer = WriterFor(publication.label, codec);
  // Step v publishes version v + 1.
  bool sends_delta = transfer.CompressesAt(publication.label.step - 1);
  for (uint32_t tile = 0; tile < TilesOf(block.range.elements); ++tile) {
    if (deltas) {
      StepTile(update, block, tile, [](size_t, std::span<const float>) {});
      sends_delta = sends_delta && EncodeDelta(block.memory, publication, tile, writer);
      continue;
    }
    const MutableByteView out = writer.NextTile(codec);
    StepTile(update, block, tile, [&](size_t first, std::span<const float> weights) {
      const size_t offset = size_t{tile} * kTileElements + first;
      codec.Encode(ShownOf(block.memory, offset, weights), {},
                   ContextOf(publication, offset), out.subspan(first * element_bytes));
    });
    writer.EndTile(out.size());
  }
  if (sends_delta || !deltas) return writer.Finish();
  std::ranges::copy(block.memory.weights, block.memory.view.begin());
  return Encode(block.memory, publication);
}

// The momentum is read as it is stored, so that a later Encode gives the same bits as the
// step did, also on a server that took the block over.
std::span<const float> StepPass::ShownOf(const BlockMemory& memory, size_t first,
                                         std::span<const float> weights) {
  if (memory.view_ahead == 0) return weights;
  if (shown_.empty()) shown_ = Buffer::Allocate(sizeof(float) * kTileElements);
  const std::span<float> shown = Floats(shown_).first(weights.size());
  LoadState(memory.state[memory.momentum], first, shown);
  for (size_t i = 0; i < shown.size(); ++i) {
    shown[i] = weights[i] - memory.view_ahead * shown[i];
  }
  return shown;
}

bool StepPass::EncodeDelta(const BlockMemory& memory, const Publication& publication,
                           uint32_t tile, BlockWriter& writer) {
  if (delta_.empty()) delta_ = Buffer::Allocate(sizeof(float) * kTileElements);
  const size_t offset = size_t{tile} * kTileElements;
  const uint32_t elements = TileElements(publication.label.range.elements, tile);
  const std::span<const float> weights = memory.weights.subspan(offset, elements);
  const std::span<float> view = memory.view.subspan(offset, elements);
  const std::span<float> delta = Floats(delta_).first(elements);
  for (size_t i = 0; i < elements; ++i) delta[i] = weights[i] - view[i];
  if (!std::isfinite(SumOfSquares(delta))) return false;
  const Codec& codec = *PublishOf(publication.label).codec;
  if (!Fits(delta, codec.traits().largest)) return false;
  const MutableByteView room = writer.NextTile(codec);
  const size_t bytes = codec.Encode(delta, {}, ContextOf(publication, offset), room);
  // Workers do the same with the same bytes.
  SYNCLINE_CHECK(codec.DecodeAdd(room.first(bytes), 1, view).ok());
  std::optional<uint32_t> crc;
  if (publication.label.step % kViewCheckSteps == 0) crc = Crc32c(std::as_bytes(view));
  writer.EndTile(bytes, crc);
  return true;
}

Payload StepPass::Encode(const BlockMemory& memory, const Publication& publication) {
  const Transfer& transfer = PublishOf(publication.label);
  const Codec& codec = transfer.compresses() ? fp32_ : *transfer.codec;
  const std::span<const float> values =
      memory.view.empty() ? memory.weights : memory.view;
  BlockWriter writer = WriterFor(publication.label, codec);
  for (uint32_t tile = 0; tile < TilesOf(publication.label.range.elements); ++tile) {
    const size_t offset = size_t{tile} * kTileElements;
    const auto part = ShownOf(
        memory, offset,
        values.subspan(offset, TileElements(publication.label.range.elements, tile)));
    const MutableByteView room = writer.NextTile(codec);
    writer.EndTile(codec.Encode(part, {}, ContextOf(publication, offset), room));
  }
  return writer.Finish();
}

// If there are transforms, they have scaled the gradient already.
StepScalars StepPass::ScalarsAfter(const TensorUpdate& update) {
  StepScalars scalars = update.scalars;
  if (update.transforms != nullptr) scalars.gradient_scale = 1;
  scalars.gradient_scale *= update.weight;
  return scalars;
}

EncodeContext StepPass::ContextOf(const Publication& publication, size_t offset) const {
  return {.seed = seed_,
          .step = publication.revision,
          .tensor = publication.label.range.tensor,
          .first_element = publication.label.range.first_element + offset};
}

BlockWriter StepPass::WriterFor(const BlockLabel& label, const Codec& codec) {
  const size_t bytes = MaxBlockBytes(codec, label.range.elements);
  std::shared_ptr<std::byte> memory;
  if (publish_memory_ != nullptr) memory = publish_memory_(bytes);
  if (memory == nullptr) memory = pool_.Allocate(bytes).owner();
  return BlockWriter(label, checksum_, std::move(memory));
}

}  // namespace syncline
