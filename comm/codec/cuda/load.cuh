// Computes x = gradient + decay * residual of a part in shared memory. This is the only
// code that reads gradients, of any type.
#pragma once

#include "comm/base/dtype.h"
#include "comm/codec/cuda/codecs.h"
#include "comm/codec/cuda/team.cuh"

namespace syncline::SYNCLINE_GPU {

template <DType kType>
struct Element;

template <>
struct Element<DType::kF32> {
  using Bits = float;
  SYNCLINE_DEVICE static float Widen(float value) { return value; }
};
template <>
struct Element<DType::kBf16> {
  using Bits = uint16_t;
  SYNCLINE_DEVICE static float Widen(uint16_t bits) {
    return FloatOf(uint32_t{bits} << 16);
  }
};
template <>
struct Element<DType::kF16> {
  using Bits = uint16_t;
  SYNCLINE_DEVICE static float Widen(uint16_t bits) { return WidenF16(bits); }
};

using Step = SynclineCudaStep;
using Units = SynclineCudaUnits;

struct Input {
  const void* gradient = nullptr;
  float* residual = nullptr;  // null, or written later
  float decay = 1;
  Step now = {};
  const Step* now_on_device = nullptr;  // null: use `now`
  Units* tile_units = nullptr;          // null: the units never change
  uint64_t elements = 0;
};

SYNCLINE_DEVICE Step NowOf(const Input& input) {
  return input.now_on_device == nullptr ? input.now : *input.now_on_device;
}

// The memory of a tile.
struct Kept {
  float* residual = nullptr;  // null: nothing is added or kept
  float factor = 1;           // of the residual
};

// The same rules as GradientMemory::CarryTo and Joins.
SYNCLINE_DEVICE Kept KeptOf(const Input& input, uint32_t tile) {
  if (input.residual == nullptr || input.tile_units == nullptr) {
    return {.residual = input.residual, .factor = input.decay};
  }
  const Units then = input.tile_units[tile];
  const Units now = NowOf(input).units;
  const bool would_be_lost = then.learning_rate > 0 && now.learning_rate == 0;
  if (would_be_lost) return {};
  const bool follows = then.learning_rate > 0 && now.learning_rate > 0;
  const float rate = follows ? Divide(then.learning_rate, now.learning_rate) : 1.0f;
  const float carry = Multiply(Divide(now.loss_scale, then.loss_scale), rate);
  return {.residual = input.residual, .factor = Multiply(input.decay, carry)};
}

// REQUIRES: the team has met since LoadPart, and the caller is one thread of the last
// part of a finite tile.
SYNCLINE_DEVICE void NoteUnits(const Input& input, const Kept& kept, uint32_t tile) {
  if (input.tile_units == nullptr || kept.residual == nullptr) return;
  input.tile_units[tile] = NowOf(input).units;
}

template <DType kType>
SYNCLINE_DEVICE float SumOf(typename Element<kType>::Bits gradient, float residual,
                            float keep) {
  return Add(Element<kType>::Widen(gradient), Multiply(keep, residual));
}

// Loads the elements that do not fill a group of four, and writes zeros up to the end of
// the row, so that rows need no special cases.
template <DType kType>
SYNCLINE_DEVICE uint32_t LoadTail(const Input& input, const Part& part, const Kept& kept,
                                  float* x) {
  using Bits = typename Element<kType>::Bits;
  const uint32_t i = part.elements / 4 * 4 + ThreadIndex();
  const uint32_t row_end =
      (part.elements + kRowElements - 1) / kRowElements * kRowElements;
  if (i >= row_end) return 0;
  float value = 0;
  if (i < part.elements) {
    const Bits bits = static_cast<const Bits*>(input.gradient)[part.offset + i];
    value = kept.residual == nullptr
                ? Element<kType>::Widen(bits)
                : SumOf<kType>(bits, kept.residual[part.offset + i], kept.factor);
  }
  x[i] = value;
  return MagnitudeOf(value);
}

// Loads the part into x. Returns the largest magnitude that this thread has seen, as
// bits; infinity and NaN are the largest. Other threads see x after a BlockBarrier.
template <DType kType>
SYNCLINE_DEVICE uint32_t LoadPart(const Input& input, const Part& part, const Kept& kept,
                                  float* x) {
  using Bits = typename Element<kType>::Bits;
  constexpr uint32_t kAtOnce = 4;  // loads in flight before the first is used
  const auto* gradients = reinterpret_cast<const Four<Bits>*>(
      static_cast<const Bits*>(input.gradient) + part.offset);
  const auto* residuals = reinterpret_cast<const Four<float>*>(
      kept.residual == nullptr ? nullptr : kept.residual + part.offset);
  auto* sums = reinterpret_cast<Four<float>*>(x);
  const uint32_t groups = part.elements / 4;
  uint32_t most = LoadTail<kType>(input, part, kept, x);
  for (uint32_t base = ThreadIndex(); base < groups; base += kAtOnce * kThreads) {
    Four<Bits> gradient[kAtOnce];
    Four<float> residual[kAtOnce] = {};
    // Threads beyond the last group read and sum that group again. Without branches, all
    // loads are in flight before the first sum.
    SYNCLINE_UNROLL
    for (uint32_t j = 0; j < kAtOnce; ++j) {
      const uint32_t group = base + j * kThreads;
      gradient[j] = gradients[group < groups ? group : groups - 1];
      if (residuals != nullptr) {
        residual[j] = residuals[group < groups ? group : groups - 1];
      }
    }
    SYNCLINE_UNROLL
    for (uint32_t j = 0; j < kAtOnce; ++j) {
      const uint32_t group = base + j * kThreads;
      Four<float> sum;
      SYNCLINE_UNROLL
      for (uint32_t i = 0; i < 4; ++i) {
        sum.at[i] = residuals == nullptr
                        ? Element<kType>::Widen(gradient[j].at[i])
                        : SumOf<kType>(gradient[j].at[i], residual[j].at[i], kept.factor);
        const uint32_t magnitude = MagnitudeOf(sum.at[i]);
        most = most > magnitude ? most : magnitude;
      }
      if (group < groups) sums[group] = sum;
    }
  }
  return most;
}

}  // namespace syncline::SYNCLINE_GPU
