// The common part of the codecs that quantise whole tiles. A format adds the layout of
// the bytes and the two loops that write and read them:
//
//   struct NaturalFormat {
//     static constexpr CodecId kId = CodecId::kNatural;
//     // Number of elements that are decoded at once. A strip starts at a multiple of it.
//     static constexpr size_t kStrip = 1024;
//     struct Options {};                        // the encoder's; passed to the kernel
//     struct Checked { ... };                   // a checked encoding
//     static std::string NameOf(const Options&);
//     static CodecTraits TraitsOf(const Options&);
//     static size_t BytesOf(const Options&, size_t elements);
//     static absl::StatusOr<Checked> Check(ByteView bytes, size_t elements);
//     // Optional: present if a GPU encodes to the same bytes.
//     static std::optional<DeviceForm> DeviceFormOf(const Options&);
//     SYNCLINE_KERNEL void EncodeTile(QuantizerTile, Options, EncodeContext);
//     // Into::To(out[i], into.Weighted(value)) for each element (decoded_into.h).
//     template <typename Into>
//     SYNCLINE_KERNEL void DecodeStrip(const Checked&, Into into, QuantizerStrip);
//   };
//   return std::make_unique<QuantizerCodec<NaturalFormat>>(options);
//
// Include this file only in sources that are built with -O3, because GCC vectorises loops
// of unknown length only there.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "absl/container/inlined_vector.h"
#include "comm/base/check.h"
#include "comm/base/isa.h"
#include "comm/base/limits.h"
#include "comm/base/status.h"
#include "comm/codec/codec.h"
#include "comm/codec/decoded_into.h"

namespace syncline {

struct QuantizerTile {
  size_t elements = 0;
  const float* values = nullptr;
  float* residual = nullptr;  // null: not wanted; may be `values`
  std::byte* out = nullptr;   // has Format::BytesOf bytes
};

// Decoded elements [first, first + n) go to out[0, n).
struct QuantizerStrip {
  size_t first = 0;
  size_t n = 0;
  float* out = nullptr;
};

template <typename Format>
class QuantizerCodec final : public Codec {
 public:
  using Options = typename Format::Options;
  using Checked = typename Format::Checked;

  explicit QuantizerCodec(const Options& options)
      : options_(options), name_(Format::NameOf(options)) {}

  CodecId id() const override { return Format::kId; }
  std::string_view name() const override { return name_; }
  CodecTraits traits() const override {
    CodecTraits traits = Format::TraitsOf(options_);
    traits.finite_only = true;
    traits.strip = kTileElements;
    return traits;
  }

  size_t MaxEncodedBytes(uint32_t elements) const override {
    return Format::BytesOf(options_, elements);
  }

  std::optional<DeviceForm> device_form() const override {
    if constexpr (requires { Format::DeviceFormOf(options_); }) {
      return Format::DeviceFormOf(options_);
    } else {
      return std::nullopt;
    }
  }

  size_t Encode(std::span<const float> values, std::span<float> residual,
                const EncodeContext& context, MutableByteView out) const override {
    const size_t bytes = Format::BytesOf(options_, values.size());
    SYNCLINE_CHECK(out.size() >= bytes);
    Kernel<Format::EncodeTile>::Run(
        {.elements = values.size(),
         .values = values.data(),
         .residual = residual.empty() ? nullptr : residual.data(),
         .out = out.data()},
        options_, context);
    return bytes;
  }

  absl::Status DecodeAdd(ByteView bytes, float weight,
                         std::span<float> accumulator) const override {
    const WeightedBytes part = {.bytes = bytes, .weight = weight};
    return DecodeAddAll({&part, 1}, accumulator);
  }

  absl::Status DecodeAddAll(std::span<const WeightedBytes> parts,
                            std::span<float> accumulator) const override {
    absl::InlinedVector<Part<AddWeighted>, 16> checked;
    for (const WeightedBytes& part : parts) {
      SYNCLINE_ASSIGN_OR_RETURN(const Checked encoding,
                                Format::Check(part.bytes, accumulator.size()));
      checked.push_back({.encoding = encoding, .into = {.weight = part.weight}});
    }
    Kernel<DecodeParts<AddWeighted>>::Run(checked.data(), checked.size(),
                                          accumulator.data(), accumulator.size());
    return absl::OkStatus();
  }

  absl::Status Decode(ByteView bytes, std::span<float> out) const override {
    SYNCLINE_ASSIGN_OR_RETURN(const Checked encoding, Format::Check(bytes, out.size()));
    const Part<Assign> part = {.encoding = encoding};
    Kernel<DecodeParts<Assign>>::Run(&part, 1, out.data(), out.size());
    return absl::OkStatus();
  }

  absl::Status Validate(ByteView bytes, uint32_t elements) const override {
    return Format::Check(bytes, elements).status();
  }

 private:
  template <typename Into>
  struct Part {
    Checked encoding = {};
    Into into = {};
  };

  // Strip by strip, so that the accumulator is in the nearest cache for all parts.
  template <typename Into>
  SYNCLINE_KERNEL void DecodeParts(const Part<Into>* parts, size_t count, float* out,
                                   size_t n) {
    constexpr size_t kStrip = Format::kStrip;
    for (size_t first = 0; first < n; first += kStrip) {
      const size_t rest = n - first;
      const QuantizerStrip strip = {
          .first = first, .n = rest < kStrip ? rest : kStrip, .out = out + first};
      for (size_t k = 0; k < count; ++k) {
        Format::DecodeStrip(parts[k].encoding, parts[k].into, strip);
      }
    }
  }

  const Options options_;
  const std::string name_;
};

}  // namespace syncline
