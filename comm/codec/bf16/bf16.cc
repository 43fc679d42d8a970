#include "comm/codec/bf16/bf16.h"

#include "comm/base/dtype.h"
#include "comm/codec/two_byte_codec.h"

namespace syncline {
namespace {

struct Bf16Format {
  static constexpr CodecId kId = CodecId::kBf16;
  static constexpr std::string_view kName = "bf16";
  // The relative error is at most half a unit of the 8th bit, 2^-9; this is its square.
  // Numbers below 2^-126 lose more.
  static constexpr CodecTraits kTraits = {.contraction = 1 - 0x1p-18,
                                          .largest = kLargestToBf16};
  static uint16_t Narrow(float value, uint32_t /*random*/) {
    return Bf16FromFloat(value);
  }
  static float Widen(uint16_t bits) { return FloatFromBf16(bits); }
};

struct StochasticBf16Format {
  static constexpr CodecId kId = CodecId::kBf16Stochastic;
  static constexpr std::string_view kName = "bf16-stochastic";
  // Rounding between neighbours one unit of the 8th bit apart, 2^-7, up with probability
  // p, has the variance p (1 - p) <= 1/4 of that unit's square.
  static constexpr CodecTraits kTraits = {.unbiased = true, .variance = 0x1p-16};
  static uint16_t Narrow(float value, uint32_t random) {
    return StochasticBf16FromFloat(value, random);
  }
  static float Widen(uint16_t bits) { return FloatFromBf16(bits); }
};

}  // namespace

std::unique_ptr<Codec> MakeBf16Codec() {
  return std::make_unique<TwoByteCodec<Bf16Format>>();
}

std::unique_ptr<Codec> MakeStochasticBf16Codec() {
  return std::make_unique<TwoByteCodec<StochasticBf16Format>>();
}

}  // namespace syncline
