#include "comm/codec/rotated/rotated.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/base/check.h"
#include "comm/base/isa.h"
#include "comm/base/random.h"
#include "comm/base/status.h"
#include "comm/codec/decoded_into.h"
#include "comm/codec/max_magnitude.h"
#include "comm/codec/rotated/hadamard.h"

namespace syncline {
namespace {

struct RotatedHeader {
  uint32_t seed = 0;
  uint16_t inner = 0;  // CodecId
  uint8_t chunk_log2 = 0;
  uint8_t reserved = 0;
};
static_assert(sizeof(RotatedHeader) == 8);

// Chunks of 16 KiB stay in the nearest cache.
constexpr uint8_t kChunkLog2 = 12;

// Below it, sums of a chunk are finite, also of the values that the widest quantizer
// produces (the norm of a tile).
constexpr float kTooLarge = 0x1p96f;

constexpr float kInverseSqrt2 = 0.70710678118654752f;

SYNCLINE_KERNEL void FindMaxMagnitude(size_t n, const float* values, float* max) {
  *max = MaxMagnitude(values, n);
}

// Returns log2 of the chunk that starts where `rest` elements of a tile are left.
[[gnu::always_inline]] inline uint32_t ChunkLog2(size_t rest) {
  const auto log2 = static_cast<uint32_t>(std::bit_width(rest) - 1);
  return log2 < kChunkLog2 ? log2 : kChunkLog2;
}

// Returns 1 / sqrt(2^log2), rounded once.
[[gnu::always_inline]] inline float ScaleOf(uint32_t log2) {
  const float scale = 1.0f / static_cast<float>(1u << (log2 / 2));
  return log2 % 2 == 0 ? scale : scale * kInverseSqrt2;
}

// Returns scale with a random sign: an element of D / sqrt(m).
[[gnu::always_inline]] inline float Signed(float scale, uint32_t random) {
  return __builtin_bit_cast(float,
                            __builtin_bit_cast(uint32_t, scale) ^ (random & 0x80000000u));
}

SYNCLINE_KERNEL void Rotate(size_t n, const float* values, RandomBits signs, float* out) {
  for (size_t first = 0; first < n;) {
    const uint32_t log2 = ChunkLog2(n - first);
    const size_t m = size_t{1} << log2;
    const float scale = ScaleOf(log2);
    const float* __restrict x = values + first;
    float* __restrict y = out + first;
    for (size_t i = 0; i < m; ++i) {
      y[i] = x[i] * Signed(scale, signs.At(static_cast<uint32_t>(first + i)));
    }
    Hadamard(y, m);
    first += m;
  }
}

// Computes into.To(out[i], into.Weighted(x[i])), where y = Rotate(x). Overwrites y.
template <typename Into>
SYNCLINE_KERNEL void RotateBack(size_t n, float* rotated, RandomBits signs, Into into,
                                float* values) {
  for (size_t first = 0; first < n;) {
    const uint32_t log2 = ChunkLog2(n - first);
    const size_t m = size_t{1} << log2;
    const float scale = ScaleOf(log2);
    float* __restrict y = rotated + first;
    float* __restrict x = values + first;
    Hadamard(y, m);
    for (size_t i = 0; i < m; ++i) {
      const float sign = Signed(scale, signs.At(static_cast<uint32_t>(first + i)));
      Into::To(x[i], into.Weighted(y[i] * sign));
    }
    first += m;
  }
}

// A checked encoding.
struct Rotated {
  RandomBits signs = {0, 0, 0, 0};
  bool is_rotated = false;
  ByteView inner = {};
};

constexpr RandomBits SignsOf(uint32_t seed) { return {seed, 0, 0, 0}; }

class RotatedCodec final : public Codec {
 public:
  explicit RotatedCodec(std::shared_ptr<const Codec> inner)
      : inner_(std::move(inner)),
        name_(absl::StrCat("rotated ", std::string(inner_->name()))) {
    SYNCLINE_CHECK(inner_->traits().finite_only && inner_->MemoryValues(1) == 0);
  }

  CodecId id() const override { return CodecId::kRotated; }
  std::string_view name() const override { return name_; }

  // Rotations keep lengths: the bounds for y hold for x, up to the rounding of 13 sums
  // each way, 2^-24 of a length each.
  CodecTraits traits() const override {
    constexpr double kRounding = 26 * 0x1p-24;
    CodecTraits traits = inner_->traits();
    const auto share = [](double squared) {
      return std::pow(std::sqrt(squared) + kRounding, 2);
    };
    if (traits.variance > 0) traits.variance = share(traits.variance);
    if (traits.contraction > 0) {
      traits.contraction = std::max(0.0, 1 - share(1 - traits.contraction));
    }
    return traits;
  }

  size_t MaxEncodedBytes(uint32_t elements) const override {
    return sizeof(RotatedHeader) + inner_->MaxEncodedBytes(elements);
  }

  size_t Encode(std::span<const float> values, std::span<float> residual,
                const EncodeContext& context, MutableByteView out) const override;

  absl::Status DecodeAdd(ByteView bytes, float weight,
                         std::span<float> accumulator) const override {
    return DecodeInto(bytes, AddWeighted{.weight = weight}, accumulator);
  }
  absl::Status Decode(ByteView bytes, std::span<float> out) const override {
    return DecodeInto(bytes, Assign{}, out);
  }
  absl::Status Validate(ByteView bytes, uint32_t elements) const override {
    SYNCLINE_ASSIGN_OR_RETURN(const Rotated rotated, Parse(bytes));
    return inner_->Validate(rotated.inner, elements);
  }

 private:
  absl::StatusOr<Rotated> Parse(ByteView bytes) const;
  template <typename Into>
  absl::Status DecodeInto(ByteView bytes, Into into, std::span<float> out) const;

  const std::shared_ptr<const Codec> inner_;
  const std::string name_;
};

size_t RotatedCodec::Encode(std::span<const float> values, std::span<float> residual,
                            const EncodeContext& context, MutableByteView out) const {
  const size_t n = values.size();
  SYNCLINE_CHECK(out.size() >= MaxEncodedBytes(static_cast<uint32_t>(n)));
  // The inverted seed gives bits other than those by which the inner codec rounds.
  const RandomBits random(~context.seed, context.step, context.tensor,
                          context.first_element);
  RotatedHeader header = {.seed = random.At(0),
                          .inner = static_cast<uint16_t>(inner_->id())};
  float max = 0;
  Kernel<FindMaxMagnitude>::Run(n, values.data(), &max);
  const bool too_large = max >= kTooLarge;
  if (!too_large) header.chunk_log2 = kChunkLog2;
  std::memcpy(out.data(), &header, sizeof(header));
  out = out.subspan(sizeof(header));
  if (too_large) {
    return sizeof(header) + inner_->Encode(values, residual, context, out);
  }
  const auto rotated = std::make_unique_for_overwrite<float[]>(n);
  const std::span<float> y(rotated.get(), n);
  const RandomBits signs = SignsOf(header.seed);
  Kernel<Rotate>::Run(n, values.data(), signs, y.data());
  const size_t bytes = inner_->Encode(y, {}, context, out);
  if (!residual.empty()) {
    if (residual.data() != values.data()) std::ranges::copy(values, residual.begin());
    SYNCLINE_CHECK(inner_->Decode(out.first(bytes), y).ok());
    Kernel<RotateBack<SubtractFrom>>::Run(n, y.data(), signs, {}, residual.data());
  }
  return sizeof(header) + bytes;
}

absl::StatusOr<Rotated> RotatedCodec::Parse(ByteView bytes) const {
  RotatedHeader header;
  if (bytes.size() < sizeof(header)) {
    return absl::InvalidArgumentError(
        absl::StrCat("rotated tile of ", bytes.size(), " bytes has no header"));
  }
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.inner != static_cast<uint16_t>(inner_->id()) || header.reserved != 0 ||
      (header.chunk_log2 != 0 && header.chunk_log2 != kChunkLog2)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rotated tile claims codec ", header.inner, " and chunks of 2^",
        header.chunk_log2, "; expected codec ", static_cast<uint16_t>(inner_->id())));
  }
  return Rotated{.signs = SignsOf(header.seed),
                 .is_rotated = header.chunk_log2 != 0,
                 .inner = bytes.subspan(sizeof(header))};
}

template <typename Into>
absl::Status RotatedCodec::DecodeInto(ByteView bytes, Into into,
                                      std::span<float> out) const {
  SYNCLINE_ASSIGN_OR_RETURN(const Rotated rotated, Parse(bytes));
  const size_t n = out.size();
  const auto scratch = std::make_unique_for_overwrite<float[]>(n);
  const std::span<float> y(scratch.get(), n);
  SYNCLINE_RETURN_IF_ERROR(inner_->Decode(rotated.inner, y));
  if (rotated.is_rotated) {
    Kernel<RotateBack<Into>>::Run(n, y.data(), rotated.signs, into, out.data());
  } else {
    for (size_t i = 0; i < n; ++i) Into::To(out[i], into.Weighted(y[i]));
  }
  return absl::OkStatus();
}

}  // namespace

std::unique_ptr<Codec> MakeRotatedCodec(std::shared_ptr<const Codec> inner) {
  return std::make_unique<RotatedCodec>(std::move(inner));
}

}  // namespace syncline
