#include "comm/codec/sign/sign.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "comm/base/check.h"
#include "comm/base/isa.h"
#include "comm/codec/block_scales.h"
#include "comm/codec/quantizer_codec.h"
#include "comm/codec/wire_values.h"

namespace syncline {
namespace {

constexpr uint32_t kSignBit = 0x80000000u;
constexpr SignOptions kDefaults = {};

using WireU64 [[gnu::may_alias, gnu::aligned(1)]] = uint64_t;
using WireU32 [[gnu::may_alias, gnu::aligned(1)]] = uint32_t;

// Number of elements whose signs are packed at once. It divides every block but the last.
constexpr size_t kStrip = 256;

// Uses 32 partial sums, which are added at the end in a fixed order, so that every
// instruction set gives the same bits.
SYNCLINE_KERNEL float SumOfMagnitudes(const float* values, size_t n) {
  constexpr size_t kLanes = 32;
  float lanes[kLanes] = {};
  const size_t whole = n - n % kLanes;
  for (size_t i = 0; i < whole; i += kLanes) {
    for (size_t j = 0; j < kLanes; ++j) lanes[j] += __builtin_fabsf(values[i + j]);
  }
  for (size_t i = whole; i < n; ++i) lanes[i - whole] += __builtin_fabsf(values[i]);
  for (size_t half = kLanes / 2; half > 0; half /= 2) {
    for (size_t j = 0; j < half; ++j) lanes[j] += lanes[j + half];
  }
  return lanes[0];
}

// A block of zeros decodes to zeros under either rule.
SYNCLINE_KERNEL float ScaleOf(SignScale rule, const float* values, size_t n) {
  constexpr float kMax = std::numeric_limits<float>::max();
  const float sum = SumOfMagnitudes(values, n);
  if (rule == SignScale::kOne) return sum > 0 ? 1.0f : 0.0f;
  return (sum < kMax ? sum : kMax) / static_cast<float>(n);
}

// Gathers the lowest bits of 8 bytes into 8 bits.
[[gnu::always_inline]] inline std::byte Gathered(uint64_t bytes) {
  bytes |= bytes >> 7;
  bytes |= bytes >> 14;
  bytes |= bytes >> 28;
  return static_cast<std::byte>(bytes);
}

SYNCLINE_KERNEL void GatherSigns(const float* values, size_t n, std::byte* signs) {
  uint8_t negative[kStrip];
  if (n == kStrip) {
    for (size_t i = 0; i < kStrip; ++i) negative[i] = values[i] < 0 ? 1 : 0;
    const WireU64* groups = reinterpret_cast<const WireU64*>(negative);
    for (size_t i = 0; i < kStrip / 8; ++i) signs[i] = Gathered(groups[i]);
    return;
  }
  for (size_t i = 0; i < kStrip; ++i) negative[i] = i < n && values[i] < 0 ? 1 : 0;
  const WireU64* groups = reinterpret_cast<const WireU64*>(negative);
  for (size_t i = 0; i < (n + 7) / 8; ++i) signs[i] = Gathered(groups[i]);
}

SYNCLINE_KERNEL void SubtractSigned(const float* values, size_t n, float scale,
                                    float* residual) {
#ifndef __clang__  // the arrays are equal or disjoint
#pragma GCC ivdep
#endif
  for (size_t i = 0; i < n; ++i) {
    const float value = values[i];
    residual[i] = value - (value < 0 ? -scale : scale);
  }
}

// Element j has only bit j set. It is a table because plain SSE cannot shift lanes by
// different counts.
struct BitTable {
  constexpr BitTable() {
    for (uint32_t j = 0; j < 32; ++j) bits[j] = uint32_t{1} << j;
  }
  uint32_t bits[32] = {};
};
constexpr BitTable kBitTable;

// Returns +-magnitude (given as bits), negative if bit j of `signs` is set.
[[gnu::always_inline]] inline float Signed(uint32_t magnitude, uint32_t signs, size_t j) {
  const uint32_t sign = (signs & kBitTable.bits[j]) != 0 ? kSignBit : 0;
  return __builtin_bit_cast(float, magnitude ^ sign);
}

// Returns the last n < 32 signs as a word; `signs` points to their first byte.
SYNCLINE_KERNEL uint32_t TailSigns(const std::byte* signs, size_t n) {
  uint32_t word = 0;
  for (size_t i = 0; i < (n + 7) / 8; ++i) {
    word |= static_cast<uint32_t>(signs[i]) << (8 * i);
  }
  return word;
}

template <typename Into>
SYNCLINE_KERNEL void SpreadSigns(const std::byte* signs, size_t n, float scale,
                                 float* out) {
  const uint32_t magnitude = __builtin_bit_cast(uint32_t, scale);
  const size_t whole = n - n % 32;
  for (size_t i = 0; i < whole; i += 32) {
    const uint32_t word = *reinterpret_cast<const WireU32*>(signs + i / 8);
    for (size_t j = 0; j < 32; ++j) Into::To(out[i + j], Signed(magnitude, word, j));
  }
  const uint32_t word = TailSigns(signs + whole / 8, n - whole);
  for (size_t j = 0; j < n - whole; ++j) {
    Into::To(out[whole + j], Signed(magnitude, word, j));
  }
}

struct SignFormat {
  static constexpr CodecId kId = CodecId::kSign;
  static constexpr uint32_t kBits = 1;
  static constexpr size_t kStrip = syncline::kStrip;
  using Options = SignOptions;
  using Checked = ScaledBlocks;

  static BlockLayout LayoutOf(const Options& options) {
    return {.block_log2 = options.block_log2, .bits = kBits};
  }
  static size_t BytesOf(const Options& options, size_t elements) {
    return LayoutOf(options).Bytes(elements);
  }
  static std::optional<DeviceForm> DeviceFormOf(const Options& options) {
    if (options.scale != SignScale::kMean) return std::nullopt;
    return DeviceForm{.block_log2 = options.block_log2};
  }
  static absl::StatusOr<Checked> Check(ByteView bytes, size_t elements) {
    return ParseScaledBlocks(bytes, elements, kBits);
  }

  static std::string NameOf(const Options& options) {
    std::string name = options.scale == SignScale::kOne ? "sign:scale=one" : "sign";
    if (options.block_log2 != kDefaults.block_log2) {
      absl::StrAppend(&name, options.scale == SignScale::kOne ? "," : ":",
                      "block=", uint32_t{1} << options.block_log2);
    }
    return name;
  }

  // For a block of d values x with signs s and scale a = |x|_1 / d, the error is
  // |x - a s|^2 = |x|_2^2 - |x|_1^2 / d, and |x|_1 >= |x|_2 (Karimireddy et al. 2019,
  // arXiv 1901.09847, section 4). A Gaussian loses 36 %, a single value all but 1/d. A
  // fixed scale guarantees nothing.
  static CodecTraits TraitsOf(const Options& options) {
    const double block = static_cast<double>(uint32_t{1} << options.block_log2);
    return {.contraction = options.scale == SignScale::kMean ? 1 / block : 0};
  }

  SYNCLINE_KERNEL void EncodeTile(QuantizerTile tile, Options options,
                                  EncodeContext /*context*/) {
    const BlockLayout layout = LayoutOf(options);
    layout.WriteHeader(tile.out);
    std::byte* scales = tile.out + layout.ScalesOffset();
    std::byte* signs = tile.out + layout.CodesOffset(tile.elements);
    const size_t block_elements = size_t{1} << options.block_log2;
    for (size_t first = 0; first < tile.elements; first += block_elements) {
      const size_t rest = tile.elements - first;
      const size_t n = rest < block_elements ? rest : block_elements;
      const float* values = tile.values + first;
      const float scale = ScaleOf(options.scale, values, n);
      __builtin_memcpy(scales + (first >> options.block_log2) * sizeof(scale), &scale,
                       sizeof(scale));
      for (size_t i = 0; i < n; i += kStrip) {
        const size_t strip = n - i < kStrip ? n - i : kStrip;
        GatherSigns(values + i, strip, signs + (first + i) / 8);
        if (tile.residual != nullptr) {
          SubtractSigned(values + i, strip, scale, tile.residual + first + i);
        }
      }
    }
  }

  template <typename Into>
  SYNCLINE_KERNEL void DecodeStrip(const Checked& blocks, Into into,
                                   QuantizerStrip strip) {
    // weight * +-scale = +-(weight * scale), to the last bit.
    const float scale = into.Weighted(blocks.ScaleOf(strip.first));
    SpreadSigns<Into>(blocks.codes + strip.first / 8, strip.n, scale, strip.out);
  }
};

}  // namespace

std::unique_ptr<Codec> MakeSignCodec(const SignOptions& options) {
  SYNCLINE_CHECK(IsBlockLog2(options.block_log2));
  return std::make_unique<QuantizerCodec<SignFormat>>(options);
}

}  // namespace syncline
