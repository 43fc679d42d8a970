#include "comm/codec/natural/natural.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "comm/base/check.h"
#include "comm/base/isa.h"
#include "comm/base/limits.h"
#include "comm/base/random.h"
#include "comm/base/status.h"

namespace syncline {
namespace {

// An encoding: one byte `base`, at most kMaxBase, and a byte for each value: the sign in
// the highest bit, and c in the others. It decodes to +-2^(base + c - 127), and to +-0 if
// c is 0. So base + c is the biased exponent of FP32, and finite for all bytes.
constexpr uint32_t kMaxCode = 127;
constexpr uint32_t kMaxBase = 127;
constexpr uint32_t kMantissaBits = 23;
constexpr uint32_t kMagnitude = 0x7fffffff;

// Values that are read while they are in the nearest cache.
constexpr size_t kStrip = 1024;

// So many elements ahead the memory for codes is fetched. Cores wait for stores to memory
// that is in no cache one after another.
constexpr size_t kAhead = 2048;

struct Tile {
  size_t elements = 0;
  const float* values = nullptr;
  float* residual = nullptr;  // null, or maybe `values`
  std::byte* out = nullptr;
};

struct Part {
  const std::byte* bytes = nullptr;
  float weight = 1;
};

[[gnu::always_inline]] inline float Decoded(uint32_t base, std::byte byte) {
  const auto code = static_cast<uint32_t>(byte);
  const uint32_t exponent = code & kMaxCode;
  const uint32_t magnitude = exponent == 0 ? 0 : (exponent + base) << kMantissaBits;
  return __builtin_bit_cast(float, magnitude | (code & 0x80) << 24);
}

// The base with which the largest value, rounded up, has the code kMaxCode.
SYNCLINE_KERNEL uint32_t BaseOf(const float* values, size_t n) {
  // Magnitudes sort like their bits.
  uint32_t max = 0;
  for (size_t i = 0; i < n; ++i) {
    const uint32_t magnitude = __builtin_bit_cast(uint32_t, values[i]) & kMagnitude;
    max = magnitude > max ? magnitude : max;
  }
  const uint32_t largest = (max >> kMantissaBits) + 1;
  const uint32_t base = largest > kMaxCode ? largest - kMaxCode : 0;
  return base < kMaxBase ? base : kMaxBase;
}

// The bits of a mantissa are the chance of its carry when uniform bits are added. The
// same is true of denormal numbers, whose next power of two is 2^-126.
SYNCLINE_KERNEL void Round(const float* values, size_t n, uint32_t base,
                           RandomBits random, std::byte* codes) {
  const auto offset = static_cast<int32_t>(base);
  for (size_t i = 0; i < n; ++i) {
    const uint32_t bits = __builtin_bit_cast(uint32_t, values[i]);
    const uint32_t carried =
        (bits & kMagnitude) + (random.At(static_cast<uint32_t>(i)) >> 9);
    int32_t code = static_cast<int32_t>(carried >> kMantissaBits) - offset;
    code = code > 0 ? code : 0;
    // Only above 2^127, where no power of two is left.
    code = code < static_cast<int32_t>(kMaxCode) ? code : kMaxCode;
    codes[i] = static_cast<std::byte>(static_cast<uint32_t>(code) | (bits >> 24 & 0x80));
  }
}

SYNCLINE_KERNEL void SubtractDecoded(const float* values, size_t n, uint32_t base,
                                     const std::byte* codes, float* residual) {
#ifndef __clang__  // either the same memory or none in common
#pragma GCC ivdep
#endif
  for (size_t i = 0; i < n; ++i) residual[i] = values[i] - Decoded(base, codes[i]);
}

SYNCLINE_KERNEL void EncodeTile(Tile tile, EncodeContext context) {
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

SYNCLINE_KERNEL void AddParts(const Part* parts, size_t count, float* accumulator,
                              size_t n) {
  for (size_t first = 0; first < n; first += kStrip) {
    const size_t strip = n - first < kStrip ? n - first : kStrip;
    float* __restrict sums = accumulator + first;
    for (size_t k = 0; k < count; ++k) {
      const auto base = static_cast<uint32_t>(parts[k].bytes[0]);
      const std::byte* __restrict codes = parts[k].bytes + 1 + first;
      const float weight = parts[k].weight;
      for (size_t i = 0; i < strip; ++i) sums[i] += weight * Decoded(base, codes[i]);
    }
  }
}

SYNCLINE_KERNEL void DecodeTile(const std::byte* bytes, float* to, size_t n) {
  const auto base = static_cast<uint32_t>(bytes[0]);
  const std::byte* __restrict codes = bytes + 1;
  float* __restrict out = to;
  for (size_t i = 0; i < n; ++i) out[i] = Decoded(base, codes[i]);
}

absl::Status Check(ByteView bytes, size_t elements) {
  if (bytes.size() != elements + 1) {
    return absl::InvalidArgumentError(absl::StrCat("encoded tile has ", bytes.size(),
                                                   " bytes, but ", elements,
                                                   " elements need ", elements + 1));
  }
  if (static_cast<uint32_t>(bytes[0]) > kMaxBase) {
    return absl::InvalidArgumentError(absl::StrCat("encoded tile has the base exponent ",
                                                   static_cast<uint32_t>(bytes[0])));
  }
  return absl::OkStatus();
}

class NaturalCodec final : public Codec {
 public:
  CodecId id() const override { return CodecId::kNatural; }
  std::string_view name() const override { return "natural"; }

  // A value m 2^e, 1 <= m < 2, becomes 2^(e + 1) with probability m - 1, which has the
  // variance (m - 1)(2 - m) / m^2 of its square: 1/8 at m = 4/3 and less elsewhere
  // (arXiv 1905.10988, theorem 1). Not for values below 2^-126.
  CodecTraits traits() const override {
    return {
        .unbiased = true, .variance = 0.125, .finite_only = true, .strip = kTileElements};
  }

  size_t MaxEncodedBytes(uint32_t elements) const override {
    return size_t{elements} + 1;
  }

  size_t Encode(std::span<const float> values, std::span<float> residual,
                const EncodeContext& context, MutableByteView out) const override {
    SYNCLINE_CHECK(out.size() > values.size());
    Kernel<EncodeTile>::Run({.elements = values.size(),
                             .values = values.data(),
                             .residual = residual.empty() ? nullptr : residual.data(),
                             .out = out.data()},
                            context);
    return values.size() + 1;
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
      SYNCLINE_RETURN_IF_ERROR(Check(part.bytes, accumulator.size()));
      checked.push_back({.bytes = part.bytes.data(), .weight = part.weight});
    }
    Kernel<AddParts>::Run(checked.data(), checked.size(), accumulator.data(),
                          accumulator.size());
    return absl::OkStatus();
  }

  absl::Status Decode(ByteView bytes, std::span<float> out) const override {
    SYNCLINE_RETURN_IF_ERROR(Check(bytes, out.size()));
    Kernel<DecodeTile>::Run(bytes.data(), out.data(), out.size());
    return absl::OkStatus();
  }

  absl::Status Validate(ByteView bytes, uint32_t elements) const override {
    return Check(bytes, elements);
  }
};

}  // namespace

std::unique_ptr<Codec> MakeNaturalCodec() { return std::make_unique<NaturalCodec>(); }

}  // namespace syncline
