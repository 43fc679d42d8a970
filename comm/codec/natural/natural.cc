#include "comm/codec/natural/natural.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "comm/base/isa.h"
#include "comm/base/random.h"
#include "comm/codec/max_magnitude.h"
#include "comm/codec/quantizer_codec.h"

namespace syncline {
namespace {

// An encoding has one byte `base`, at most kMaxBase, and then a byte for each value. The
// highest bit of that byte is the sign, the others are a code c. The value is +-2^(base +
// c - 127), or +-0 if c is 0. So base + c is the biased exponent of FP32, and any bytes
// decode to finite values.
constexpr uint32_t kMaxCode = 127;
constexpr uint32_t kMaxBase = 127;
constexpr uint32_t kMantissaBits = 23;
constexpr uint32_t kMagnitude = 0x7fffffff;

// Number of values that are processed while they are in the nearest cache.
constexpr size_t kStrip = 1024;

// The memory for codes is prefetched this many elements ahead, because a core waits for
// each store to memory that is in no cache.
constexpr size_t kAhead = 2048;

[[gnu::always_inline]] inline float Decoded(uint32_t base, std::byte byte) {
  const auto code = static_cast<uint32_t>(byte);
  const uint32_t exponent = code & kMaxCode;
  const uint32_t magnitude = exponent == 0 ? 0 : (exponent + base) << kMantissaBits;
  return __builtin_bit_cast(float, magnitude | (code & 0x80) << 24);
}

// Returns the base with which the largest value, rounded up, has the code kMaxCode.
SYNCLINE_KERNEL uint32_t BaseOf(const float* values, size_t n) {
  const auto max = __builtin_bit_cast(uint32_t, MaxMagnitude(values, n));
  const uint32_t largest = (max >> kMantissaBits) + 1;
  const uint32_t base = largest > kMaxCode ? largest - kMaxCode : 0;
  return base < kMaxBase ? base : kMaxBase;
}

// Adding uniform bits to the mantissa carries with a probability equal to the mantissa.
// The same holds for denormal numbers, whose next power of two is 2^-126.
SYNCLINE_KERNEL void Round(const float* values, size_t n, uint32_t base,
                           RandomBits random, std::byte* codes) {
  const auto offset = static_cast<int32_t>(base);
  for (size_t i = 0; i < n; ++i) {
    const uint32_t bits = __builtin_bit_cast(uint32_t, values[i]);
    const uint32_t carried =
        (bits & kMagnitude) + (random.At(static_cast<uint32_t>(i)) >> 9);
    int32_t code = static_cast<int32_t>(carried >> kMantissaBits) - offset;
    code = code > 0 ? code : 0;
    // Only values above 2^127 need this: there is no larger power of two.
    code = code < static_cast<int32_t>(kMaxCode) ? code : kMaxCode;
    codes[i] = static_cast<std::byte>(static_cast<uint32_t>(code) | (bits >> 24 & 0x80));
  }
}

SYNCLINE_KERNEL void SubtractDecoded(const float* values, size_t n, uint32_t base,
                                     const std::byte* codes, float* residual) {
#ifndef __clang__  // the arrays are equal or disjoint
#pragma GCC ivdep
#endif
  for (size_t i = 0; i < n; ++i) residual[i] = values[i] - Decoded(base, codes[i]);
}

struct NaturalFormat {
  static constexpr CodecId kId = CodecId::kNatural;
  static constexpr size_t kStrip = syncline::kStrip;
  struct Options {};
  struct Checked {
    uint32_t base = 0;
    const std::byte* codes = nullptr;
  };

  static std::string NameOf(const Options& /*options*/) { return "natural"; }
  static size_t BytesOf(const Options& /*options*/, size_t elements) {
    return elements + 1;
  }

  // A value m 2^e, 1 <= m < 2, becomes 2^(e + 1) with probability m - 1. The variance is
  // (m - 1)(2 - m) / m^2 of its square: 1/8 at m = 4/3 and less elsewhere (arXiv
  // 1905.10988, theorem 1). The bound does not hold for values below 2^-126.
  static CodecTraits TraitsOf(const Options& /*options*/) {
    return {.unbiased = true, .variance = 0.125};
  }

  static absl::StatusOr<Checked> Check(ByteView bytes, size_t elements) {
    if (bytes.size() != elements + 1) {
      return absl::InvalidArgumentError(absl::StrCat("encoded tile has ", bytes.size(),
                                                     " bytes, but ", elements,
                                                     " elements need ", elements + 1));
    }
    const auto base = static_cast<uint32_t>(bytes[0]);
    if (base > kMaxBase) {
      return absl::InvalidArgumentError(
          absl::StrCat("encoded tile has the base exponent ", base));
    }
    return Checked{.base = base, .codes = bytes.data() + 1};
  }

  SYNCLINE_KERNEL void EncodeTile(QuantizerTile tile, Options /*options*/,
                                  EncodeContext context) {
    const uint32_t base = BaseOf(tile.values, tile.elements);
    tile.out[0] = static_cast<std::byte>(base);
    std::byte* codes = tile.out + 1;
    for (size_t i = 0; i < tile.elements; i += kStrip) {
      const size_t n = tile.elements - i < kStrip ? tile.elements - i : kStrip;
      if (i + kAhead + kStrip <= tile.elements) {
        for (size_t j = 0; j < kStrip; j += 64) {
          __builtin_prefetch(codes + i + kAhead + j, 1);
        }
      }
      const RandomBits random(context.seed, context.step, context.tensor,
                              context.first_element + i);
      Round(tile.values + i, n, base, random, codes + i);
      if (tile.residual != nullptr) {
        SubtractDecoded(tile.values + i, n, base, codes + i, tile.residual + i);
      }
    }
  }

  template <typename Into>
  SYNCLINE_KERNEL void DecodeStrip(const Checked& encoding, Into into,
                                   QuantizerStrip strip) {
    const uint32_t base = encoding.base;
    const std::byte* __restrict codes = encoding.codes + strip.first;
    float* __restrict out = strip.out;
    for (size_t i = 0; i < strip.n; ++i) {
      Into::To(out[i], into.Weighted(Decoded(base, codes[i])));
    }
  }
};

}  // namespace

std::unique_ptr<Codec> MakeNaturalCodec() {
  return std::make_unique<QuantizerCodec<NaturalFormat>>(NaturalFormat::Options{});
}

}  // namespace syncline
