#include "comm/codec/fp32/fp32.h"

#include <algorithm>
#include <cstring>

#include "comm/base/check.h"
#include "comm/base/isa.h"
#include "comm/base/status.h"
#include "comm/codec/dense.h"
#include "comm/codec/dense_sum.h"
#include "comm/codec/wire_values.h"

namespace syncline {
namespace {

constexpr size_t kBytesPerElement = 4;

SYNCLINE_KERNEL void AddScaledBody(size_t n, const std::byte* bytes, float weight,
                                   float* accumulator) {
  const WireFloat* __restrict values = AsFloats(bytes);
  float* __restrict sums = accumulator;
  for (size_t i = 0; i < n; ++i) sums[i] += weight * values[i];
}

class Fp32Codec final : public Codec {
 public:
  CodecId id() const override { return CodecId::kFp32; }
  std::string_view name() const override { return "fp32"; }

  size_t MaxEncodedBytes(uint32_t elements) const override {
    return size_t{elements} * kBytesPerElement;
  }

  CodecTraits traits() const override { return {.unbiased = true, .contraction = 1}; }

  size_t Encode(std::span<const float> values, std::span<float> residual,
                const EncodeContext& /*context*/, MutableByteView out) const override {
    SYNCLINE_CHECK(out.size() >= values.size_bytes());
    if (!values.empty()) std::memcpy(out.data(), values.data(), values.size_bytes());
    std::ranges::fill(residual, 0.0f);
    return values.size_bytes();
  }

  absl::Status DecodeAdd(ByteView bytes, float weight,
                         std::span<float> accumulator) const override {
    SYNCLINE_RETURN_IF_ERROR(
        CheckDenseLength(bytes, accumulator.size(), kBytesPerElement));
    Kernel<AddScaledBody>::Run(accumulator.size(), bytes.data(), weight,
                               accumulator.data());
    return absl::OkStatus();
  }

  absl::Status DecodeAddAll(std::span<const WeightedBytes> parts,
                            std::span<float> accumulator) const override {
    for (const WeightedBytes& part : parts) {
      SYNCLINE_RETURN_IF_ERROR(
          CheckDenseLength(part.bytes, accumulator.size(), kBytesPerElement));
    }
    DenseSum<Fp32Codec>::Add(parts, accumulator);
    return absl::OkStatus();
  }

  // Used by DenseSum.
  [[gnu::always_inline]] static float Read(const std::byte* bytes, size_t i) {
    return AsFloats(bytes)[i];
  }

  absl::Status Decode(ByteView bytes, std::span<float> out) const override {
    SYNCLINE_RETURN_IF_ERROR(CheckDenseLength(bytes, out.size(), kBytesPerElement));
    if (!out.empty()) std::memcpy(out.data(), bytes.data(), bytes.size());
    return absl::OkStatus();
  }

  absl::Status Validate(ByteView bytes, uint32_t elements) const override {
    return CheckDenseLength(bytes, elements, kBytesPerElement);
  }
};

}  // namespace

std::unique_ptr<Codec> MakeFp32Codec() { return std::make_unique<Fp32Codec>(); }

}  // namespace syncline
