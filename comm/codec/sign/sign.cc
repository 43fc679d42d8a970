#include "comm/codec/sign/sign.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "comm/base/check.h"
#include "comm/base/isa.h"
#include "comm/base/status.h"
#include "comm/codec/block_scales.h"
#include "comm/codec/wire_values.h"

namespace syncline {
namespace {

constexpr uint32_t kSignBit = 0x80000000u;
constexpr SignOptions kDefaults = {};

using WireU64 [[gnu::may_alias, gnu::aligned(1)]] = uint64_t;
using WireU32 [[gnu::may_alias, gnu::aligned(1)]] = uint32_t;

// Elements whose signs are gathered at once; divides every block but the last.
constexpr size_t kStrip = 256;

struct Tile {
  size_t elements = 0;
  const float* values = nullptr;
  float* residual = nullptr;  // null, or maybe `values`
  std::byte* scales = nullptr;
  std::byte* signs = nullptr;
  uint32_t block_log2 = 0;
  SignScale scale = SignScale::kMean;
};

struct Part {
  ScaledBlocks blocks = {};
  float weight = 1;
};

// In 32 sums that are added at the end in a fixed order, so that any instruction set
// gives the same bits.
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

// A block of zeros decodes to zeros, whatever the rule.
SYNCLINE_KERNEL float ScaleOf(SignScale rule, const float* values, size_t n) {
  constexpr float kMax = std::numeric_limits<float>::max();
  const float sum = SumOfMagnitudes(values, n);
  if (rule == SignScale::kOne) return sum > 0 ? 1.0f : 0.0f;
  return (sum < kMax ? sum : kMax) / static_cast<float>(n);
}

// The lowest bits of 8 bytes, as 8 bits.
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
#ifndef __clang__  // either the same memory or none in common
#pragma GCC ivdep
#endif
  for (size_t i = 0; i < n; ++i) {
    const float value = values[i];
    residual[i] = value - (value < 0 ? -scale : scale);
  }
}

SYNCLINE_KERNEL void EncodeTile(Tile tile) {
  const size_t block_elements = size_t{1} << tile.block_log2;
  for (size_t first = 0; first < tile.elements; first += block_elements) {
    const size_t rest = tile.elements - first;
    const size_t n = rest < block_elements ? rest : block_elements;
    const float* values = tile.values + first;
    const float scale = ScaleOf(tile.scale, values, n);
    __builtin_memcpy(tile.scales + (first >> tile.block_log2) * sizeof(scale), &scale,
                     sizeof(scale));
    for (size_t i = 0; i < n; i += kStrip) {
      const size_t strip = n - i < kStrip ? n - i : kStrip;
      GatherSigns(values + i, strip, tile.signs + (first + i) / 8);
      if (tile.residual != nullptr) {
        SubtractSigned(values + i, strip, scale, tile.residual + first + i);
      }
    }
  }
}

// Bit j at j. A table, because plain SSE has no shift by a different count in each lane.
struct BitTable {
  constexpr BitTable() {
    for (uint32_t j = 0; j < 32; ++j) bits[j] = uint32_t{1} << j;
  }
  uint32_t bits[32] = {};
};
constexpr BitTable kBitTable;

// +-magnitude, given as bits, for bit j of `signs`.
[[gnu::always_inline]] inline float Signed(uint32_t magnitude, uint32_t signs, size_t j) {
  const uint32_t sign = (signs & kBitTable.bits[j]) != 0 ? kSignBit : 0;
  return __builtin_bit_cast(float, magnitude ^ sign);
}

// The signs from byte `at` on as a word, the last of n elements in the highest bits used.
SYNCLINE_KERNEL uint32_t TailSigns(const std::byte* signs, size_t n) {
  uint32_t word = 0;
  for (size_t i = 0; i < (n + 7) / 8; ++i) {
    word |= static_cast<uint32_t>(signs[i]) << (8 * i);
  }
  return word;
}

struct Assign {
  [[gnu::always_inline]] static void To(float& out, float value) { out = value; }
};
struct Add {
  [[gnu::always_inline]] static void To(float& out, float value) { out += value; }
};

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

// Strip by strip, so that the accumulator is in the nearest cache for all parts.
template <typename Into>
SYNCLINE_KERNEL void DecodeParts(const Part* parts, size_t count, float* out, size_t n) {
  for (size_t i = 0; i < n; i += kStrip) {
    const size_t strip = n - i < kStrip ? n - i : kStrip;
    for (size_t k = 0; k < count; ++k) {
      // weight * +-scale = +-(weight * scale), to the last bit.
      const float scale = parts[k].weight * parts[k].blocks.ScaleOf(i);
      SpreadSigns<Into>(parts[k].blocks.codes + i / 8, strip, scale, out + i);
    }
  }
}

class SignCodec final : public Codec {
 public:
  explicit SignCodec(const SignOptions& options)
      : options_(options), layout_{.block_log2 = options.block_log2, .bits = kBits} {
    SYNCLINE_CHECK(options.block_log2 >= kMinBlockLog2);
    SYNCLINE_CHECK(options.block_log2 <= kMaxBlockLog2);
    name_ = options.scale == SignScale::kOne ? "sign:scale=one" : "sign";
    if (options.block_log2 != kDefaults.block_log2) {
      absl::StrAppend(&name_, options.scale == SignScale::kOne ? "," : ":",
                      "block=", uint32_t{1} << options.block_log2);
    }
  }

  CodecId id() const override { return CodecId::kSign; }
  std::string_view name() const override { return name_; }

  // For a block of d values x with signs s and scale a = |x|_1 / d, the error is
  // |x - a s|^2 = |x|_2^2 - |x|_1^2 / d, and |x|_1 >= |x|_2 (Karimireddy et al. 2019,
  // arXiv 1901.09847, section 4). A Gaussian loses 36 %, a single value all but 1/d.
  // A fixed scale promises nothing.
  CodecTraits traits() const override {
    const double block = static_cast<double>(uint32_t{1} << options_.block_log2);
    return {.contraction = options_.scale == SignScale::kMean ? 1 / block : 0,
            .finite_only = true,
            .strip = kTileElements};
  }

  size_t MaxEncodedBytes(uint32_t elements) const override {
    return layout_.Bytes(elements);
  }

  size_t Encode(std::span<const float> values, std::span<float> residual,
                const EncodeContext& /*context*/, MutableByteView out) const override {
    const size_t bytes = layout_.Bytes(values.size());
    SYNCLINE_CHECK(out.size() >= bytes);
    layout_.WriteHeader(out.data());
    Kernel<EncodeTile>::Run({.elements = values.size(),
                             .values = values.data(),
                             .residual = residual.empty() ? nullptr : residual.data(),
                             .scales = out.data() + layout_.ScalesOffset(),
                             .signs = out.data() + layout_.CodesOffset(values.size()),
                             .block_log2 = options_.block_log2,
                             .scale = options_.scale});
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
    Kernel<DecodeParts<Add>>::Run(checked.data(), checked.size(), accumulator.data(),
                                  accumulator.size());
    return absl::OkStatus();
  }

  absl::Status Decode(ByteView bytes, std::span<float> out) const override {
    SYNCLINE_ASSIGN_OR_RETURN(const ScaledBlocks blocks,
                              ParseScaledBlocks(bytes, out.size(), kBits));
    const Part part = {.blocks = blocks, .weight = 1};
    Kernel<DecodeParts<Assign>>::Run(&part, 1, out.data(), out.size());
    return absl::OkStatus();
  }

  absl::Status Validate(ByteView bytes, uint32_t elements) const override {
    return ParseScaledBlocks(bytes, elements, kBits).status();
  }

 private:
  static constexpr uint32_t kBits = 1;

  const SignOptions options_;
  const BlockLayout layout_;
  std::string name_;
};

}  // namespace

std::unique_ptr<Codec> MakeSignCodec(const SignOptions& options) {
  return std::make_unique<SignCodec>(options);
}

}  // namespace syncline
