#include "comm/codec/bf16/bf16.h"

#include "comm/base/dtype.h"
#include "comm/codec/two_byte_codec.h"

namespace syncline {
namespace {

struct Bf16Format {
  static constexpr CodecId kId = CodecId::kBf16;
  static constexpr std::string_view kName = "bf16";
  // Half a unit of the 8th bit, squared. Numbers below 2^-126 lose more.
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
  // A unit of the 8th bit apart, rounded with probability p: p(1 - p) <= 1/4 of it
  // squared.
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
