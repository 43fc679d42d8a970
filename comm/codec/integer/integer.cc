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
#include "comm/base/status.h"
#include "comm/codec/block_scales.h"
#include "comm/codec/integer/packing.h"

namespace syncline {
namespace {

constexpr IntegerOptions kDefaults = {};

// Blocks of smaller values encode as zeros: their step, or one over it, would not be a
// normal number.
constexpr float kSmallestRange = 0x1p-119f;

// The largest float whose division by the levels can be undone without overflow.
constexpr float kLargestRange = 0x1.fffffcp127f;

// Elements that are codes at once; divides every block but the last.
constexpr size_t kStrip = 256;

// So many elements ahead the memory for codes is fetched. Cores wait for stores to memory
// that is in no cache one after another: without it, encoding takes half as long again.
constexpr size_t kAhead = 2048;

constexpr int Levels(uint32_t bits) { return (1 << (bits - 1)) - 1; }

struct Tile {
  size_t elements = 0;
  const float* values = nullptr;
  float* residual = nullptr;  // null, or maybe `values`
  std::byte* steps = nullptr;
  std::byte* codes = nullptr;
  IntegerOptions options = {};
};

struct Part {
  ScaledBlocks blocks = {};
  float weight = 1;
};

SYNCLINE_KERNEL float MaxMagnitude(const float* values, size_t n) {
  // Magnitudes sort like their bits; unlike floats these are vectorised.
  uint32_t max = 0;
  for (size_t i = 0; i < n; ++i) {
    const uint32_t magnitude = __builtin_bit_cast(uint32_t, values[i]) & 0x7fffffff;
    max = magnitude > max ? magnitude : max;
  }
  return __builtin_bit_cast(float, max);
}

// In units of `max`, so that nothing overflows, and in 32 sums that are added at the end
// in a fixed order, so that any instruction set gives the same bits.
SYNCLINE_KERNEL float Norm(const float* values, size_t n, float max) {
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
  return max * __builtin_sqrtf(lanes[0]);
}

// 0: the block is encoded as zeros.
SYNCLINE_KERNEL float StepOf(const IntegerOptions& options, const float* values,
                             size_t n) {
  const float max = MaxMagnitude(values, n);
  if (max < kSmallestRange) return 0;
  const float range = options.range == IntegerRange::kL2 ? Norm(values, n, max) : max;
  return (range < kLargestRange ? range : kLargestRange) /
         static_cast<float>(Levels(options.bits));
}

// The random bits of a strip.
struct Chance {
  RandomBits random;
  uint32_t first = 0;
};

// Adding it to a value far below 2^22 leaves no bits for a fraction: the sum's lowest
// bits are the nearest integer in two's complement.
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

// The nearest of value + u, with u uniform in +-1/2, is up or down with the right chance.
// Zeros stay zeros: ties go to even. Only the rounding of quotients and sums can lead
// beyond the highest level, from next to it.
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

// Of a code whose higher bits are zero, or, with 8, of any.
template <uint32_t kBits>
[[gnu::always_inline]] inline float Value(uint8_t code) {
  constexpr int kSign = 1 << (kBits - 1);
  return static_cast<float>((code ^ kSign) - kSign);
}

// Codes as RoundToNearest leaves them: two's complement of a byte.
SYNCLINE_KERNEL void SubtractDecoded(const float* values, size_t n, float step,
                                     const uint8_t* codes, float* residual) {
#ifndef __clang__  // either the same memory or none in common
#pragma GCC ivdep
#endif
  for (size_t i = 0; i < n; ++i) residual[i] = values[i] - Value<8>(codes[i]) * step;
}

template <uint32_t kBits>
SYNCLINE_KERNEL void EncodeStrip(const Tile& tile, size_t first, size_t n, float step,
                                 const RandomBits& random) {
  const float* values = tile.values + first;
  const float inverse = step > 0 ? 1 / step : 0;
  uint8_t codes[kStrip];
  if (first + kAhead + kStrip <= tile.elements) {
    std::byte* ahead = tile.codes + (first + kAhead) * kBits / 8;
    for (size_t i = 0; i < kStrip * kBits / 8; i += 64) __builtin_prefetch(ahead + i, 1);
  }
  if (tile.options.rounding == IntegerRounding::kNearest) {
    RoundToNearest(values, n, inverse, codes);
  } else {
    RoundByChance<Levels(kBits)>(
        values, n, inverse, {.random = random, .first = static_cast<uint32_t>(first)},
        codes);
  }
  for (size_t i = n; i % 4 != 0; ++i) codes[i] = 0;
  Packing<kBits>::Pack(codes, n, tile.codes + first * kBits / 8);
  if (tile.residual != nullptr) {
    SubtractDecoded(values, n, step, codes, tile.residual + first);
  }
}

template <uint32_t kBits>
SYNCLINE_KERNEL void EncodeTile(Tile tile, RandomBits random) {
  const size_t block_elements = size_t{1} << tile.options.block_log2;
  for (size_t first = 0; first < tile.elements; first += block_elements) {
    const size_t rest = tile.elements - first;
    const size_t n = rest < block_elements ? rest : block_elements;
    const float step = StepOf(tile.options, tile.values + first, n);
    __builtin_memcpy(tile.steps + (first >> tile.options.block_log2) * sizeof(step),
                     &step, sizeof(step));
    for (size_t i = 0; i < n; i += kStrip) {
      EncodeStrip<kBits>(tile, first + i, n - i < kStrip ? n - i : kStrip, step, random);
    }
  }
}

// Strip by strip, so that the accumulator is in the nearest cache for all parts.
template <uint32_t kBits>
SYNCLINE_KERNEL void AddParts(const Part* parts, size_t count, float* accumulator,
                              size_t n) {
  uint8_t codes[kStrip];
  for (size_t first = 0; first < n; first += kStrip) {
    const size_t strip = n - first < kStrip ? n - first : kStrip;
    float* __restrict sums = accumulator + first;
    for (size_t k = 0; k < count; ++k) {
      const float step = parts[k].blocks.ScaleOf(first);
      const float weight = parts[k].weight;
      Packing<kBits>::Unpack(parts[k].blocks.codes + first * kBits / 8, strip, codes);
      for (size_t i = 0; i < strip; ++i) {
        sums[i] += weight * (Value<kBits>(codes[i]) * step);
      }
    }
  }
}

template <uint32_t kBits>
SYNCLINE_KERNEL void DecodeTile(ScaledBlocks blocks, float* to, size_t n) {
  uint8_t codes[kStrip];
  for (size_t first = 0; first < n; first += kStrip) {
    const size_t strip = n - first < kStrip ? n - first : kStrip;
    float* __restrict out = to + first;
    const float step = blocks.ScaleOf(first);
    Packing<kBits>::Unpack(blocks.codes + first * kBits / 8, strip, codes);
    for (size_t i = 0; i < strip; ++i) out[i] = Value<kBits>(codes[i]) * step;
  }
}

std::string NameOf(const IntegerOptions& options) {
  absl::InlinedVector<std::string, 3> parts;
  if (options.rounding == IntegerRounding::kStochastic) {
    parts.push_back("rounding=stochastic");
  }
  if (options.range == IntegerRange::kL2) parts.push_back("range=l2");
  if (options.block_log2 != kDefaults.block_log2) {
    parts.push_back(absl::StrCat("block=", uint32_t{1} << options.block_log2));
  }
  return absl::StrCat("int", options.bits, parts.empty() ? "" : ":",
                      absl::StrJoin(parts, ","));
}

template <uint32_t kBits>
class IntegerCodec final : public Codec {
 public:
  explicit IntegerCodec(const IntegerOptions& options)
      : options_(options),
        layout_{.block_log2 = options.block_log2, .bits = kBits},
        name_(NameOf(options)) {
    SYNCLINE_CHECK(options.block_log2 >= kMinBlockLog2);
    SYNCLINE_CHECK(options.block_log2 <= kMaxBlockLog2);
  }

  CodecId id() const override {
    return kBits == 8 ? CodecId::kInt8 : kBits == 4 ? CodecId::kInt4 : CodecId::kInt2;
  }
  std::string_view name() const override { return name_; }

  CodecTraits traits() const override;

  size_t MaxEncodedBytes(uint32_t elements) const override {
    return layout_.Bytes(elements);
  }

  size_t Encode(std::span<const float> values, std::span<float> residual,
                const EncodeContext& context, MutableByteView out) const override {
    const size_t bytes = layout_.Bytes(values.size());
    SYNCLINE_CHECK(out.size() >= bytes);
    layout_.WriteHeader(out.data());
    const RandomBits random(context.seed, context.step, context.tensor,
                            context.first_element);
    Kernel<EncodeTile<kBits>>::Run(
        {.elements = values.size(),
         .values = values.data(),
         .residual = residual.empty() ? nullptr : residual.data(),
         .steps = out.data() + layout_.ScalesOffset(),
         .codes = out.data() + layout_.CodesOffset(values.size()),
         .options = options_},
        random);
    return bytes;
  }

  absl::Status DecodeAdd(ByteView bytes, float weight,
                         std::span<float> accumulator) const override {
    const WeightedBytes part = {.bytes = bytes, .weight = weight};
    return DecodeAddAll({&part, 1}, accumulator);
  }

  absl::Status DecodeAddAll(std::span<const WeightedBytes> parts,
                            std::span<float> accumulator) const override {
    absl::InlinedVector<Part, 16> checked;
    for (const WeightedBytes& part : parts) {
      SYNCLINE_ASSIGN_OR_RETURN(const ScaledBlocks blocks,
                                ParseScaledBlocks(part.bytes, accumulator.size(), kBits));
      checked.push_back({.blocks = blocks, .weight = part.weight});
    }
    Kernel<AddParts<kBits>>::Run(checked.data(), checked.size(), accumulator.data(),
                                 accumulator.size());
    return absl::OkStatus();
  }

  absl::Status Decode(ByteView bytes, std::span<float> out) const override {
    SYNCLINE_ASSIGN_OR_RETURN(const ScaledBlocks blocks,
                              ParseScaledBlocks(bytes, out.size(), kBits));
    Kernel<DecodeTile<kBits>>::Run(blocks, out.data(), out.size());
    return absl::OkStatus();
  }

  absl::Status Validate(ByteView bytes, uint32_t elements) const override {
    return ParseScaledBlocks(bytes, elements, kBits).status();
  }

 private:
  const IntegerOptions options_;
  const BlockLayout layout_;
  const std::string name_;
};

template <uint32_t kBits>
CodecTraits IntegerCodec<kBits>::traits() const {
  const double block = std::ldexp(1.0, static_cast<int>(options_.block_log2));
  const double levels = Levels(kBits);
  CodecTraits traits = {.finite_only = true, .strip = kTileElements};
  if (options_.rounding == IntegerRounding::kStochastic) {
    // A value between two multiples of the step, p of it above the lower, has the
    // variance p (1 - p) step^2. That is at most step^2 / 4, and at most |value| step;
    // step <= |x|_2 / levels for both ranges (Alistarh et al. 2017, arXiv 1610.02132,
    // lemma 3.1).
    traits.unbiased = true;
    traits.variance = std::min(block / (4 * levels * levels), std::sqrt(block) / levels);
  } else if (options_.range == IntegerRange::kAbsmax) {
    // The largest value m is nearly exact, and any other loses at most half a step,
    // m / (2 levels), and at most itself. The most is lost when all others are half a
    // step. The last factor is what rounding of quotients adds.
    const double others = block - 1;
    traits.contraction =
        1 - others / (4 * levels * levels + others) * (1 + levels * 0x1p-20);
  }
  return traits;
}

}  // namespace

std::unique_ptr<Codec> MakeIntegerCodec(const IntegerOptions& options) {
  SYNCLINE_CHECK(options.bits == 8 || options.bits == 4 || options.bits == 2);
  if (options.bits == 8) return std::make_unique<IntegerCodec<8>>(options);
  if (options.bits == 4) return std::make_unique<IntegerCodec<4>>(options);
  return std::make_unique<IntegerCodec<2>>(options);
}

}  // namespace syncline
