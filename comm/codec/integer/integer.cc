#include "comm/codec/integer/integer.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "comm/base/check.h"
#include "comm/base/isa.h"
#include "comm/base/random.h"
#include "comm/codec/block_scales.h"
#include "comm/codec/integer/packing.h"
#include "comm/codec/max_magnitude.h"
#include "comm/codec/quantizer_codec.h"

namespace syncline {
namespace {

constexpr IntegerOptions kDefaults = {};

// Blocks whose values are all below it encode as zeros: their step, or its inverse, would
// not be a normal number.
constexpr float kSmallestRange = 0x1p-119f;

// The largest float that, divided by the levels, can be multiplied back without overflow.
constexpr float kLargestRange = 0x1.fffffcp127f;

// Number of elements whose codes are held unpacked at once. It divides every block but
// the last.
constexpr size_t kStrip = 256;

// The memory for codes is prefetched this many elements ahead. Without it encoding takes
// 1.5 times as long, because a core waits for each store to memory that is in no cache.
constexpr size_t kAhead = 2048;

constexpr int Levels(uint32_t bits) { return (1 << (bits - 1)) - 1; }

// What EncodeStrip needs to know of a tile.
struct Target {
  QuantizerTile tile = {};
  std::byte* codes = nullptr;
  IntegerRounding rounding = IntegerRounding::kNearest;
};

// Returns the block's norm in units of `max`, so that nothing overflows. It uses 32
// partial sums, which are added at the end in a fixed order, so that every instruction
// set gives the same bits.
SYNCLINE_KERNEL float NormOverMax(const float* values, size_t n, float max) {
  constexpr size_t kLanes = 32;
  const float inverse = 1 / max;
  float lanes[kLanes] = {};
  const size_t whole = n - n % kLanes;
  for (size_t i = 0; i < whole; i += kLanes) {
    for (size_t j = 0; j < kLanes; ++j) {
      const float value = values[i + j] * inverse;
      lanes[j] += value * value;
    }
  }
  for (size_t i = whole; i < n; ++i) {
    const float value = values[i] * inverse;
    lanes[i - whole] += value * value;
  }
  for (size_t half = kLanes / 2; half > 0; half /= 2) {
    for (size_t j = 0; j < half; ++j) lanes[j] += lanes[j + half];
  }
  return __builtin_sqrtf(lanes[0]);
}

// Returns the step of a block; 0: the block is encoded as zeros.
SYNCLINE_KERNEL float StepOf(const IntegerOptions& options, const float* values,
                             size_t n) {
  const float max = MaxMagnitude(values, n);
  if (max < kSmallestRange) return 0;
  float range = max;
  if (options.range == IntegerRange::kL2) range = max * NormOverMax(values, n, max);
  if (options.clip > 0) {
    const float most = options.clip * NormOverMax(values, n, max) /
                       __builtin_sqrtf(static_cast<float>(n));
    range = max * (most < 1 ? most : 1);
    if (range < kSmallestRange) return 0;
  }
  return (range < kLargestRange ? range : kLargestRange) /
         static_cast<float>(Levels(options.bits));
}

// The random bits of a strip.
struct Chance {
  RandomBits random;
  uint32_t first = 0;
};

// Adding this constant to a value far below 2^22 leaves no bits for a fraction: the
// lowest bits of the sum are the nearest integer in two's complement.
constexpr float kRounder = 0x1.8p23f;
constexpr int32_t kRounderBits = 0x4b400000;
static_assert(std::bit_cast<int32_t>(kRounder) == kRounderBits);

SYNCLINE_KERNEL void RoundToNearest(const float* values, size_t n, float inverse,
                                    uint8_t* codes) {
  for (size_t i = 0; i < n; ++i) {
    codes[i] = static_cast<uint8_t>(
        __builtin_bit_cast(uint32_t, values[i] * inverse + kRounder));
  }
}

// With u uniform in +-1/2, the nearest integer of value + u is the upper or lower
// neighbour with the right probability. Zeros stay zeros because ties go to even. Results
// beyond the highest level come from clipping, or otherwise from rounding of quotients
// and sums just next to it.
template <int32_t kLevels>
SYNCLINE_KERNEL void RoundByChance(const float* values, size_t n, float inverse,
                                   const Chance& chance, uint8_t* codes) {
  const RandomBits random = chance.random;
  const uint32_t first = chance.first;
  for (size_t i = 0; i < n; ++i) {
    const auto bits = static_cast<int32_t>(random.At(first + static_cast<uint32_t>(i)));
    const float u = static_cast<float>(bits) * 0x1p-32f;
    int32_t code =
        __builtin_bit_cast(int32_t, values[i] * inverse + u + kRounder) - kRounderBits;
    code = code < kLevels ? code : kLevels;
    code = code > -kLevels ? code : -kLevels;
    codes[i] = static_cast<uint8_t>(code);
  }
}

// Returns the signed value of a code whose higher bits are zero; with 8 bits, of any
// code.
template <uint32_t kBits>
[[gnu::always_inline]] inline float Value(uint8_t code) {
  constexpr int kSign = 1 << (kBits - 1);
  return static_cast<float>((code ^ kSign) - kSign);
}

// `codes` is the output of RoundToNearest: a byte of two's complement each.
SYNCLINE_KERNEL void SubtractDecoded(const float* values, size_t n, float step,
                                     const uint8_t* codes, float* residual) {
#ifndef __clang__  // the arrays are equal or disjoint
#pragma GCC ivdep
#endif
  for (size_t i = 0; i < n; ++i) residual[i] = values[i] - Value<8>(codes[i]) * step;
}

template <uint32_t kBits>
SYNCLINE_KERNEL void EncodeStrip(const Target& target, size_t first, size_t n, float step,
                                 const RandomBits& random) {
  const QuantizerTile& tile = target.tile;
  const float* values = tile.values + first;
  const float inverse = step > 0 ? 1 / step : 0;
  uint8_t codes[kStrip];
  if (first + kAhead + kStrip <= tile.elements) {
    std::byte* ahead = target.codes + (first + kAhead) * kBits / 8;
    for (size_t i = 0; i < kStrip * kBits / 8; i += 64) __builtin_prefetch(ahead + i, 1);
  }
  if (target.rounding == IntegerRounding::kNearest) {
    RoundToNearest(values, n, inverse, codes);
  } else {
    RoundByChance<Levels(kBits)>(
        values, n, inverse, {.random = random, .first = static_cast<uint32_t>(first)},
        codes);
  }
  for (size_t i = n; i % 4 != 0; ++i) codes[i] = 0;
  Packing<kBits>::Pack(codes, n, target.codes + first * kBits / 8);
  if (tile.residual != nullptr) {
    SubtractDecoded(values, n, step, codes, tile.residual + first);
  }
}

template <uint32_t kBits>
struct IntegerFormat {
  static constexpr CodecId kId = kBits == 8   ? CodecId::kInt8
                                 : kBits == 4 ? CodecId::kInt4
                                              : CodecId::kInt2;
  static constexpr size_t kStrip = syncline::kStrip;
  using Options = IntegerOptions;
  using Checked = ScaledBlocks;

  static std::string NameOf(const Options& options);
  static CodecTraits TraitsOf(const Options& options);

  static BlockLayout LayoutOf(const Options& options) {
    return {.block_log2 = options.block_log2, .bits = kBits};
  }
  static size_t BytesOf(const Options& options, size_t elements) {
    return LayoutOf(options).Bytes(elements);
  }
  static std::optional<DeviceForm> DeviceFormOf(const Options& options) {
    const bool has_kernel =
        kBits == 8 && options.range == IntegerRange::kAbsmax && options.clip == 0;
    if (!has_kernel) return std::nullopt;
    return DeviceForm{.block_log2 = options.block_log2,
                      .is_stochastic = options.rounding == IntegerRounding::kStochastic};
  }
  static absl::StatusOr<Checked> Check(ByteView bytes, size_t elements) {
    return ParseScaledBlocks(bytes, elements, kBits);
  }

  SYNCLINE_KERNEL void EncodeTile(QuantizerTile tile, Options options,
                                  EncodeContext context) {
    const BlockLayout layout = LayoutOf(options);
    layout.WriteHeader(tile.out);
    std::byte* steps = tile.out + layout.ScalesOffset();
    const Target target = {.tile = tile,
                           .codes = tile.out + layout.CodesOffset(tile.elements),
                           .rounding = options.rounding};
    const RandomBits random(context.seed, context.step, context.tensor,
                            context.first_element);
    const size_t block_elements = size_t{1} << options.block_log2;
    for (size_t first = 0; first < tile.elements; first += block_elements) {
      const size_t rest = tile.elements - first;
      const size_t n = rest < block_elements ? rest : block_elements;
      const float step = StepOf(options, tile.values + first, n);
      __builtin_memcpy(steps + (first >> options.block_log2) * sizeof(step), &step,
                       sizeof(step));
      for (size_t i = 0; i < n; i += kStrip) {
        EncodeStrip<kBits>(target, first + i, n - i < kStrip ? n - i : kStrip, step,
                           random);
      }
    }
  }

  template <typename Into>
  SYNCLINE_KERNEL void DecodeStrip(const Checked& blocks, Into into,
                                   QuantizerStrip strip) {
    uint8_t codes[kStrip];
    float* __restrict out = strip.out;
    const float step = blocks.ScaleOf(strip.first);
    Packing<kBits>::Unpack(blocks.codes + strip.first * kBits / 8, strip.n, codes);
    for (size_t i = 0; i < strip.n; ++i) {
      Into::To(out[i], into.Weighted(Value<kBits>(codes[i]) * step));
    }
  }
};

template <uint32_t kBits>
std::string IntegerFormat<kBits>::NameOf(const Options& options) {
  absl::InlinedVector<std::string, 4> parts;
  if (options.rounding == IntegerRounding::kStochastic) {
    parts.push_back("rounding=stochastic");
  }
  if (options.range == IntegerRange::kL2) parts.push_back("range=l2");
  if (options.clip > 0) parts.push_back(absl::StrCat("clip=", options.clip));
  if (options.block_log2 != kDefaults.block_log2) {
    parts.push_back(absl::StrCat("block=", uint32_t{1} << options.block_log2));
  }
  return absl::StrCat("int", kBits, parts.empty() ? "" : ":", absl::StrJoin(parts, ","));
}

template <uint32_t kBits>
CodecTraits IntegerFormat<kBits>::TraitsOf(const Options& options) {
  const double block = std::ldexp(1.0, static_cast<int>(options.block_log2));
  const double levels = Levels(kBits);
  CodecTraits traits;
  // A value between two multiples of the step, at fraction p above the lower, has the
  // variance p (1 - p) step^2. That is at most step^2 / 4, and at most |value| step.
  if (options.clip > 0) {
    // step <= clip |x|_2 / sqrt(block) / levels, and a clipped value loses at most
    // itself.
    const double step = options.clip / levels;
    traits.variance = 1 + std::min(step * step / 4, step);
  } else if (options.rounding == IntegerRounding::kStochastic) {
    // step <= |x|_2 / levels for both ranges (Alistarh et al. 2017, arXiv 1610.02132,
    // lemma 3.1).
    traits.unbiased = true;
    traits.variance = std::min(block / (4 * levels * levels), std::sqrt(block) / levels);
  } else if (options.range == IntegerRange::kAbsmax) {
    // The largest value m is nearly exact. Any other loses at most half a step, m / (2
    // levels), and at most itself. The loss is greatest if all others are half a step.
    // The last factor is for the rounding of quotients.
    const double others = block - 1;
    traits.contraction =
        1 - others / (4 * levels * levels + others) * (1 + levels * 0x1p-20);
  }
  return traits;
}

}  // namespace

std::unique_ptr<Codec> MakeIntegerCodec(const IntegerOptions& options) {
  SYNCLINE_CHECK(IsBlockLog2(options.block_log2));
  SYNCLINE_CHECK(options.clip == 0 ||
                 (options.clip >= 1 && options.range == IntegerRange::kAbsmax &&
                  options.rounding == IntegerRounding::kStochastic));
  SYNCLINE_CHECK(options.bits == 8 || options.bits == 4 || options.bits == 2);
  if (options.bits == 8)
    return std::make_unique<QuantizerCodec<IntegerFormat<8>>>(options);
  if (options.bits == 4)
    return std::make_unique<QuantizerCodec<IntegerFormat<4>>>(options);
  return std::make_unique<QuantizerCodec<IntegerFormat<2>>>(options);
}

}  // namespace syncline
