#include "comm/codec/bf16/bf16.h"

#include "comm/base/check.h"
#include "comm/base/dtype.h"
#include "comm/base/isa.h"
#include "comm/base/status.h"
#include "comm/codec/dense.h"
#include "comm/codec/wire_values.h"

namespace syncline {
namespace {

constexpr size_t kBytesPerElement = 2;

SYNCLINE_KERNEL void RoundBody(size_t n, const float* from, std::byte* to) {
  const float* __restrict values = from;
  WireU16* __restrict out = AsU16s(to);
  for (size_t i = 0; i < n; ++i) out[i] = Bf16FromFloat(values[i]);
}

SYNCLINE_KERNEL void AddScaledBody(size_t n, const std::byte* bytes, float weight,
                                   float* accumulator) {
  const WireU16* __restrict values = AsU16s(bytes);
  float* __restrict sums = accumulator;
  for (size_t i = 0; i < n; ++i) sums[i] += weight * FloatFromBf16(values[i]);
}

SYNCLINE_KERNEL void WidenBody(size_t n, const std::byte* bytes, float* to) {
  const WireU16* __restrict values = AsU16s(bytes);
  float* __restrict out = to;
  for (size_t i = 0; i < n; ++i) out[i] = FloatFromBf16(values[i]);
}

class Bf16Codec final : public Codec {
 public:
  CodecId id() const override { return CodecId::kBf16; }
  std::string_view name() const override { return "bf16"; }

  size_t MaxEncodedBytes(uint32_t elements) const override {
    return size_t{elements} * kBytesPerElement;
  }

  size_t Encode(std::span<float> values, MutableByteView out) const override {
    const size_t bytes = values.size() * kBytesPerElement;
    SYNCLINE_CHECK(out.size() >= bytes);
    Kernel<RoundBody>::Run(values.size(), values.data(), out.data());
    return bytes;
  }

  absl::Status DecodeAdd(ByteView bytes, float weight,
                         std::span<float> accumulator) const override {
    SYNCLINE_RETURN_IF_ERROR(
        CheckDenseLength(bytes, accumulator.size(), kBytesPerElement));
    Kernel<AddScaledBody>::Run(accumulator.size(), bytes.data(), weight,
                               accumulator.data());
    return absl::OkStatus();
  }

  absl::Status Decode(ByteView bytes, std::span<float> out) const override {
    SYNCLINE_RETURN_IF_ERROR(CheckDenseLength(bytes, out.size(), kBytesPerElement));
    Kernel<WidenBody>::Run(out.size(), bytes.data(), out.data());
    return absl::OkStatus();
  }

  absl::Status Validate(ByteView bytes, uint32_t elements) const override {
    return CheckDenseLength(bytes, elements, kBytesPerElement);
  }
};

}  // namespace

std::unique_ptr<Codec> MakeBf16Codec() { return std::make_unique<Bf16Codec>(); }

}  // namespace syncline
