#include "comm/compression/memory/gradient_memory.h"

#include <algorithm>
#include <bit>
#include <cstdint>

#include "comm/base/check.h"
#include "comm/base/isa.h"
#include "comm/base/tiling.h"

namespace syncline {
namespace {

constexpr uint32_t kMagnitude = 0x7fffffff;
constexpr uint32_t kInfinity = 0x7f800000;

SYNCLINE_KERNEL void MaxMagnitude(size_t n, const float* x, uint32_t* max) {
  uint32_t most = 0;
  for (size_t i = 0; i < n; ++i) {
    most = std::max(most, std::bit_cast<uint32_t>(x[i]) & kMagnitude);
  }
  *max = most;
}

// Computes x = g + factor * e, and the largest |x| as bits. Magnitudes order like
// integers, with infinity and NaN above all others.
SYNCLINE_KERNEL void AddKept(size_t n, const float* gradient, const float* kept,
                             float factor, float* sum, uint32_t* max) {
  const float* __restrict g = gradient;
  const float* __restrict e = kept;
  float* __restrict x = sum;
  uint32_t most = 0;
  for (size_t i = 0; i < n; ++i) {
    x[i] = g[i] + factor * e[i];
    most = std::max(most, std::bit_cast<uint32_t>(x[i]) & kMagnitude);
  }
  *max = most;
}

struct Momentum {
  float carry = 1;  // factor of the velocity
  float carry_residual = 1;
  float momentum = 0;
  // Factor of the gradient that is added to x beside u: 1 for Nesterov's form, otherwise
  // 0.
  float nesterov = 0;
};

struct CorrectedTile {
  const float* gradient = nullptr;
  const float* kept = nullptr;
  float* velocity = nullptr;
  float* sum = nullptr;
};

SYNCLINE_KERNEL void Correct(size_t n, Momentum factors, CorrectedTile tile,
                             uint32_t* max) {
  const float* __restrict g = tile.gradient;
  const float* __restrict v = tile.kept;
  float* __restrict u = tile.velocity;
  float* __restrict x = tile.sum;
  const float ahead = factors.nesterov;
  // Nesterov's form: u = momentum * (u + g), and x gets u + g. The paper's form: u =
  // momentum * u + g, and x gets u.
  const float share = ahead * factors.momentum + (1 - ahead);
  uint32_t most = 0;
  for (size_t i = 0; i < n; ++i) {
    u[i] = factors.momentum * (factors.carry * u[i]) + share * g[i];
    x[i] = factors.carry_residual * v[i] + u[i] + ahead * g[i];
    most = std::max(most, std::bit_cast<uint32_t>(x[i]) & kMagnitude);
  }
  *max = most;
}

// Uses eight sums, so that additions need not wait for each other.
SYNCLINE_KERNEL void SquareSum(size_t n, const float* x, double* sum) {
  constexpr size_t kLanes = 8;
  double lanes[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      lanes[lane] += double{x[i + lane]} * double{x[i + lane]};
    }
  }
  for (; i < n; ++i) lanes[0] += double{x[i]} * double{x[i]};
  for (const double lane : lanes) *sum += lane;
}

SYNCLINE_KERNEL void Combine(size_t n, float of_x, float of_y, const float* y, float* x) {
  for (size_t i = 0; i < n; ++i) x[i] = of_x * x[i] + of_y * y[i];
}

// Sets u to 0 where something was sent.
SYNCLINE_KERNEL void Mask(size_t n, const float* given, const float* left, float* out) {
  const float* __restrict x = given;
  const float* __restrict residual = left;
  float* __restrict u = out;
  for (size_t i = 0; i < n; ++i) u[i] = residual[i] == x[i] ? u[i] : 0.0f;
}

}  // namespace

GradientMemory::GradientMemory(const MemorySpec& spec, uint64_t elements)
    : spec_(spec), notes_(TilesOf(elements)) {
  if (spec.kind != MemoryKind::kNone) residual_.resize(elements);
  if (spec.kind == MemoryKind::kMomentumCorrection) velocity_.resize(elements);
}

GradientMemory::Carry GradientMemory::CarryTo(const GradientUnits& units,
                                              size_t tile) const {
  const GradientUnits& then = notes_[tile].units;
  const float loss_scale = units.loss_scale / then.loss_scale;
  const bool follows = then.learning_rate > 0 && units.learning_rate > 0;
  const float rate = follows ? then.learning_rate / units.learning_rate : 1.0f;
  // Momentum is applied with the rate of the step, as optimizers do.
  return {.velocity = loss_scale, .residual = loss_scale * rate};
}

std::vector<GradientUnits> GradientMemory::units() const {
  std::vector<GradientUnits> units;
  for (const TileNotes& notes : notes_) units.push_back(notes.units);
  return units;
}

bool GradientMemory::Restore(const Kept& kept) {
  if (kept.residual.size() != residual_.size() ||
      kept.velocity.size() != velocity_.size() || kept.units.size() != notes_.size()) {
    return false;
  }
  std::ranges::copy(kept.residual, residual_.begin());
  std::ranges::copy(kept.velocity, velocity_.begin());
  for (size_t i = 0; i < notes_.size(); ++i) notes_[i] = {.units = kept.units[i]};
  return true;
}

std::span<const float> GradientMemory::Settle(const GradientUnits& units) {
  const auto momentum = static_cast<float>(spec_.momentum);
  for (size_t tile = 0; tile < notes_.size() && !residual_.empty(); ++tile) {
    const size_t first = tile * kTileElements;
    const size_t n = std::min<size_t>(residual_.size() - first, kTileElements);
    const Carry carry = CarryTo(units, tile);
    // The series m u + m^2 u + ...
    const float rest = carry.velocity * momentum / (1 - momentum);
    float* const residual = residual_.data() + first;
    if (velocity_.empty()) {
      Kernel<Combine>::Run(n, carry.residual, 0.0f, residual, residual);
    } else {
      Kernel<Combine>::Run(n, carry.residual, rest, velocity_.data() + first, residual);
    }
  }
  return residual_;
}

void GradientMemory::TakeBack(const Tile& sent) {
  uint32_t max = 0;
  const size_t n = sent.gradient.size();
  Kernel<MaxMagnitude>::Run(n, sent.gradient.data(), &max);
  if (!Joins(sent) || max >= kInfinity) return;
  const size_t first = sent.context.first_element;
  const Carry carry = CarryTo(sent.units, first / kTileElements);
  Kernel<Combine>::Run(n, carry.residual, 1.0f, sent.gradient.data(),
                       residual_.data() + first);
  if (!velocity_.empty() && carry.velocity != 1) {
    for (size_t i = 0; i < n; ++i) velocity_[first + i] *= carry.velocity;
  }
  notes_[first / kTileElements].units = sent.units;
}

bool GradientMemory::IsSampled(const EncodeContext& context) {
  constexpr uint64_t kSampleEvery = 64;
  return (context.step + context.first_element / kTileElements) % kSampleEvery == 0;
}

GradientMemory::Squares GradientMemory::Sample(const Tile& tile,
                                               std::span<const float> left) {
  Squares squares;
  if (!IsSampled(tile.context)) return squares;
  Kernel<SquareSum>::Run(tile.gradient.size(), tile.gradient.data(), &squares.gradient);
  Kernel<SquareSum>::Run(left.size(), left.data(), &squares.residual);
  return squares;
}

GradientMemory::Scratch GradientMemory::ScratchFor(size_t elements,
                                                   Workspace& workspace) const {
  const bool corrects = spec_.kind == MemoryKind::kMomentumCorrection;
  const size_t needed = kTileElements * (corrects ? 2 : 1);
  if (workspace.values.size() < needed) workspace.values.resize(needed);
  const std::span<float> values = workspace.values;
  Scratch scratch = {.x = values.first(elements)};
  if (corrects) scratch.velocity = values.subspan(kTileElements, elements);
  return scratch;
}

std::span<const float> GradientMemory::Preview(const Tile& tile,
                                               Workspace& workspace) const {
  const Scratch scratch = ScratchFor(tile.gradient.size(), workspace);
  const bool is_sum = Joins(tile) && Gather(tile, scratch) < kInfinity;
  return is_sum ? scratch.x : tile.gradient;
}

bool GradientMemory::Joins(const Tile& tile) const {
  if (spec_.kind == MemoryKind::kNone) return false;
  const GradientUnits& then = notes_[tile.context.first_element / kTileElements].units;
  const bool would_be_lost = then.learning_rate > 0 && tile.units.learning_rate == 0;
  return !would_be_lost;
}

uint32_t GradientMemory::Gather(const Tile& tile, const Scratch& scratch) const {
  const auto& [x, velocity] = scratch;
  const size_t n = tile.gradient.size();
  const size_t first = tile.context.first_element;
  const Carry carry = CarryTo(tile.units, first / kTileElements);
  uint32_t max = 0;
  switch (Joins(tile) ? spec_.kind : MemoryKind::kNone) {
    case MemoryKind::kNone:
      Kernel<MaxMagnitude>::Run(n, tile.gradient.data(), &max);
      break;
    case MemoryKind::kErrorFeedback:
      Kernel<AddKept>::Run(n, tile.gradient.data(), residual_.data() + first,
                           static_cast<float>(spec_.decay) * carry.residual, x.data(),
                           &max);
      break;
    case MemoryKind::kMomentumCorrection:
      std::copy_n(velocity_.data() + first, n, velocity.data());
      Kernel<Correct>::Run(n,
                           Momentum{.carry = carry.velocity,
                                    .carry_residual = carry.residual,
                                    .momentum = static_cast<float>(spec_.momentum),
                                    .nesterov = spec_.nesterov ? 1.0f : 0.0f},
                           CorrectedTile{.gradient = tile.gradient.data(),
                                         .kept = residual_.data() + first,
                                         .velocity = velocity.data(),
                                         .sum = x.data()},
                           &max);
      break;
  }
  return max;
}

GradientMemory::Squares GradientMemory::EncodeTile(const Transfer& transfer,
                                                   const Tile& tile, BlockWriter& writer,
                                                   Workspace& workspace) {
  const size_t n = tile.gradient.size();
  const size_t first = tile.context.first_element;
  SYNCLINE_CHECK(first % kTileElements == 0);
  EncodeContext context = tile.context;
  const auto dense = [&] {
    const Codec& codec = transfer.compresses() ? *transfer.dense : *transfer.codec;
    const MutableByteView room = writer.NextTile(codec);
    writer.EndTile(codec.Encode(tile.gradient, {}, context, room));
    return Squares();
  };
  if (!transfer.compresses()) return dense();
  TileNotes& notes = notes_[first / kTileElements];
  const Scratch scratch = ScratchFor(n, workspace);
  const uint32_t max = Gather(tile, scratch);
  if (max >= kInfinity) return dense();
  const bool fits = max <= std::bit_cast<uint32_t>(transfer.codec->traits().largest);
  const bool joins = Joins(tile);
  if (!joins && !fits) return dense();
  const Codec& codec = fits ? *transfer.codec : *transfer.dense;
  if (!fits) {
    const float most = codec.traits().largest;
    for (float& value : scratch.x) value = std::clamp(value, -most, most);
  }
  notes.of_codec.resize(transfer.codec->MemoryValues(static_cast<uint32_t>(n)));
  if (fits) context.memory = notes.of_codec;
  const MutableByteView room = writer.NextTile(codec);
  if (!joins) {
    writer.EndTile(codec.Encode(tile.gradient, {}, context, room));
    return {};
  }
  notes.units = tile.units;
  const std::span<float> left = std::span(residual_).subspan(first, n);
  writer.EndTile(codec.Encode(scratch.x, left, context, room));
  const Squares squares = Sample(tile, left);
  if (spec_.kind != MemoryKind::kMomentumCorrection) return squares;
  Kernel<Mask>::Run(n, scratch.x.data(), left.data(), scratch.velocity.data());
  std::ranges::copy(scratch.velocity, velocity_.begin() + static_cast<ptrdiff_t>(first));
  return squares;
}

}  // namespace syncline
