// The rules of codecs with a scale for each block (comm/codec/block_scales.h): sign and
// int8, with the same operations as comm/codec/sign and comm/codec/integer.
//
// A rule computes the scale of a block and encodes four neighbours at a time. One warp
// measures a block that fits a part. Several parts of a tile measure a larger one.
#pragma once

#include "comm/base/random.h"
#include "comm/codec/cuda/team.cuh"

namespace syncline::SYNCLINE_GPU {

// Random bits in shared memory, whose types must not have constructors.
struct StoredRandomBits {
  uint32_t words[sizeof(RandomBits) / sizeof(uint32_t)];
};
SYNCLINE_DEVICE StoredRandomBits Stored(const RandomBits& random) {
  return __builtin_bit_cast(StoredRandomBits, random);
}
SYNCLINE_DEVICE RandomBits Taken(const StoredRandomBits& stored) {
  return __builtin_bit_cast(RandomBits, stored);
}

struct Scale {
  float scale = 0;
  float inverse = 0;  // int8: 1 / scale, or 0
};

// Four encoded neighbours, the first in the lowest bits, and their losses.
struct Encoded {
  uint32_t codes = 0;
  Four<float> lost;
};

// Data that the parts of a tile exchange. All zero at first.
struct alignas(64) Board {
  uint32_t arrived;
  uint32_t magnitudes[kParts];
};

// Data that the parts pass on while they sum a block that spans them.
struct alignas(64) Chain {
  uint32_t summed[kParts];  // 1: `lanes` and `total` of this part are valid
  float total[kParts];      // of the block up to the end of this part
  float lanes[kParts][kWarp];
};

struct SignRule {
  static constexpr uint32_t kBits = 1;
  static constexpr bool kChained = true;
  static constexpr bool kRandom = false;

  // Continues 32 sums, one for each lane, in the order of the CPU's kernel.
  SYNCLINE_DEVICE static float WarpSum(const float* x, uint32_t n, float sum) {
    constexpr uint32_t kAtOnce = 8;
    uint32_t i = Lane();
    for (; i + (kAtOnce - 1) * kWarp < n; i += kAtOnce * kWarp) {
      float values[kAtOnce];
      SYNCLINE_UNROLL
      for (uint32_t j = 0; j < kAtOnce; ++j) {
        values[j] = FloatOf(MagnitudeOf(x[i + j * kWarp]));
      }
      SYNCLINE_UNROLL
      for (uint32_t j = 0; j < kAtOnce; ++j) sum = Add(sum, values[j]);
    }
    for (; i < n; i += kWarp) sum = Add(sum, FloatOf(MagnitudeOf(x[i])));
    return sum;
  }

  // The result is valid in lane 0.
  SYNCLINE_DEVICE static float SumLanes(float sum) {
    for (uint32_t half = kWarp / 2; half > 0; half /= 2) {
      sum = Add(sum, WarpShuffleDown(sum, half));
    }
    return sum;
  }

  SYNCLINE_DEVICE static Scale ScaleOf(float total, uint32_t n) {
    constexpr float kMax = 0x1.fffffep127f;
    return {.scale = Divide(total < kMax ? total : kMax, static_cast<float>(n))};
  }

  // Returns the scale of n values in shared memory. The result is valid in lane 0.
  SYNCLINE_DEVICE static Scale WarpScale(const float* x, uint32_t n) {
    return ScaleOf(SumLanes(WarpSum(x, n, 0)), n);
  }

  SYNCLINE_DEVICE static Encoded Encode(const Four<float>& x, const Scale& scale,
                                        const RandomBits& /*random*/, uint32_t /*at*/) {
    Encoded encoded;
    SYNCLINE_UNROLL
    for (uint32_t i = 0; i < 4; ++i) {
      const bool negative = x.at[i] < 0;
      encoded.codes |= (negative ? 1u : 0u) << i;
      encoded.lost.at[i] = Subtract(x.at[i], negative ? -scale.scale : scale.scale);
    }
    return encoded;
  }

  // Stores codes of eight lanes as one word. Collective for the warp.
  SYNCLINE_DEVICE static void WarpStore(uint32_t codes, uint32_t element, bool exists,
                                        uint32_t* words) {
    uint32_t word = codes << (4 * (Lane() % 8));
    word |= WarpShuffleXor(word, 1);
    word |= WarpShuffleXor(word, 2);
    word |= WarpShuffleXor(word, 4);
    if (exists && Lane() % 8 == 0) words[element / 32] = word;
  }
};

enum class Rounding { kNearest, kStochastic };

template <Rounding kRounding>
struct Int8Rule {
  static constexpr uint32_t kBits = 8;
  static constexpr bool kChained = false;
  static constexpr bool kRandom = kRounding == Rounding::kStochastic;

  SYNCLINE_DEVICE static Scale ScaleOf(uint32_t magnitude) {
    constexpr float kSmallestRange = 0x1p-119f;
    constexpr float kLargestRange = 0x1.fffffcp127f;
    constexpr float kLevels = 127;
    const float max = FloatOf(magnitude);
    if (max < kSmallestRange) return {};
    const float step = Divide(max < kLargestRange ? max : kLargestRange, kLevels);
    return {.scale = step, .inverse = Divide(1, step)};
  }

  SYNCLINE_DEVICE static Scale WarpScale(const float* x, uint32_t n) {
    uint32_t most = 0;
    for (uint32_t i = Lane(); i < n; i += kWarp) {
      const uint32_t magnitude = MagnitudeOf(x[i]);
      most = most > magnitude ? most : magnitude;
    }
    return ScaleOf(WarpMax(most));
  }

  SYNCLINE_DEVICE static int32_t Code(float value, uint32_t bits) {
    // This constant leaves no bits for a fraction: the lowest bits of the sum are the
    // nearest integer.
    constexpr float kRounder = 0x1.8p23f;
    constexpr int32_t kRounderBits = 0x4b400000;
    if constexpr (kRounding == Rounding::kStochastic) {
      const float u = Multiply(static_cast<float>(static_cast<int32_t>(bits)), 0x1p-32f);
      value = Add(value, u);
    }
    const int32_t code =
        static_cast<int32_t>(BitsOf(Add(value, kRounder))) - kRounderBits;
    return code > 127 ? 127 : code < -127 ? -127 : code;
  }

  SYNCLINE_DEVICE static Encoded Encode(const Four<float>& x, const Scale& scale,
                                        const RandomBits& random, uint32_t at) {
    Encoded encoded;
    SYNCLINE_UNROLL
    for (uint32_t i = 0; i < 4; ++i) {
      const uint32_t bits = kRounding == Rounding::kStochastic ? random.At(at + i) : 0;
      const int32_t code = Code(Multiply(x.at[i], scale.inverse), bits);
      encoded.codes |= (static_cast<uint32_t>(code) & 0xffu) << (8 * i);
      encoded.lost.at[i] =
          Subtract(x.at[i], Multiply(static_cast<float>(code), scale.scale));
    }
    return encoded;
  }

  SYNCLINE_DEVICE static void WarpStore(uint32_t codes, uint32_t element, bool exists,
                                        uint32_t* words) {
    if (exists) words[element / 4] = codes;
  }
};

}  // namespace syncline::SYNCLINE_GPU
