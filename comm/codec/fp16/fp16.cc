#include "comm/codec/fp16/fp16.h"

#include "comm/base/dtype.h"
#include "comm/codec/two_byte_codec.h"

namespace syncline {
namespace {

struct Fp16Format {
  static constexpr CodecId kId = CodecId::kFp16;
  static constexpr std::string_view kName = "fp16";
  // Not a contraction: values below 2^-25 are lost entirely, and values above 65504
  // become infinity.
  static constexpr CodecTraits kTraits = {.largest = 0x1.ffdffep15f};
  static uint16_t Narrow(float value, uint32_t /*random*/) { return F16FromFloat(value); }
  static float Widen(uint16_t bits) { return FloatFromF16(bits); }
};

}  // namespace

std::unique_ptr<Codec> MakeFp16Codec() {
  return std::make_unique<TwoByteCodec<Fp16Format>>();
}

}  // namespace syncline
