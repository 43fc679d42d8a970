// The common part of the codecs of two bytes per element. A format adds the rules that
// convert a float to two bytes and back:
//
//   struct Bf16Format {
//     static constexpr CodecId kId = CodecId::kBf16;
//     static constexpr std::string_view kName = "bf16";
//     static constexpr CodecTraits kTraits = {.contraction = 1 - 0x1p-18};
//     static uint16_t Narrow(float value, uint32_t random);
//     static float Widen(uint16_t bits);
//   };
//   return std::make_unique<TwoByteCodec<Bf16Format>>();
//
// Include this file only in sources that are built with -O3, because GCC vectorises loops
// of unknown length only there.
#pragma once

#include <string_view>

#include "comm/base/check.h"
#include "comm/base/isa.h"
#include "comm/base/random.h"
#include "comm/base/status.h"
#include "comm/codec/codec.h"
#include "comm/codec/dense.h"
#include "comm/codec/dense_sum.h"
#include "comm/codec/wire_values.h"

namespace syncline {

template <typename Format>
class TwoByteCodec final : public Codec {
 public:
  CodecId id() const override { return Format::kId; }
  std::string_view name() const override { return Format::kName; }

  size_t MaxEncodedBytes(uint32_t elements) const override {
    return size_t{elements} * kBytesPerElement;
  }

  CodecTraits traits() const override { return Format::kTraits; }

  size_t Encode(std::span<const float> values, std::span<float> residual,
                const EncodeContext& context, MutableByteView out) const override {
    const size_t bytes = values.size() * kBytesPerElement;
    SYNCLINE_CHECK(out.size() >= bytes);
    const RandomBits random(context.seed, context.step, context.tensor,
                            context.first_element);
    Kernel<Round>::Run(values.size(), values.data(), random, out.data());
    if (!residual.empty()) {
      Kernel<Subtract>::Run(values.size(), values.data(), out.data(), residual.data());
    }
    return bytes;
  }

  absl::Status DecodeAdd(ByteView bytes, float weight,
                         std::span<float> accumulator) const override {
    SYNCLINE_RETURN_IF_ERROR(
        CheckDenseLength(bytes, accumulator.size(), kBytesPerElement));
    Kernel<AddScaled>::Run(accumulator.size(), bytes.data(), weight, accumulator.data());
    return absl::OkStatus();
  }

  absl::Status DecodeAddAll(std::span<const WeightedBytes> parts,
                            std::span<float> accumulator) const override {
    for (const WeightedBytes& part : parts) {
      SYNCLINE_RETURN_IF_ERROR(
          CheckDenseLength(part.bytes, accumulator.size(), kBytesPerElement));
    }
    DenseSum<TwoByteCodec>::Add(parts, accumulator);
    return absl::OkStatus();
  }

  // Used by DenseSum.
  [[gnu::always_inline]] static float Read(const std::byte* bytes, size_t i) {
    return Format::Widen(AsU16s(bytes)[i]);
  }

  absl::Status Decode(ByteView bytes, std::span<float> out) const override {
    SYNCLINE_RETURN_IF_ERROR(CheckDenseLength(bytes, out.size(), kBytesPerElement));
    Kernel<Expand>::Run(out.size(), bytes.data(), out.data());
    return absl::OkStatus();
  }

  absl::Status Validate(ByteView bytes, uint32_t elements) const override {
    return CheckDenseLength(bytes, elements, kBytesPerElement);
  }

 private:
  static constexpr size_t kBytesPerElement = 2;

  SYNCLINE_KERNEL void Round(size_t n, const float* from, RandomBits random,
                             std::byte* to) {
    const float* __restrict values = from;
    WireU16* __restrict out = AsU16s(to);
    for (size_t i = 0; i < n; ++i) {
      out[i] = Format::Narrow(values[i], random.At(static_cast<uint32_t>(i)));
    }
  }

  // `residual` may be `from`.
  SYNCLINE_KERNEL void Subtract(size_t n, const float* from, const std::byte* encoded,
                                float* residual) {
    const WireU16* bits = AsU16s(encoded);
    for (size_t i = 0; i < n; ++i) residual[i] = from[i] - Format::Widen(bits[i]);
  }

  SYNCLINE_KERNEL void AddScaled(size_t n, const std::byte* bytes, float weight,
                                 float* accumulator) {
    const WireU16* __restrict values = AsU16s(bytes);
    float* __restrict sums = accumulator;
    for (size_t i = 0; i < n; ++i) sums[i] += weight * Format::Widen(values[i]);
  }

  SYNCLINE_KERNEL void Expand(size_t n, const std::byte* bytes, float* to) {
    const WireU16* __restrict values = AsU16s(bytes);
    float* __restrict out = to;
    for (size_t i = 0; i < n; ++i) out[i] = Format::Widen(values[i]);
  }
};

}  // namespace syncline
