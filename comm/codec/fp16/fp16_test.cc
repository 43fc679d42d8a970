#include "comm/codec/fp16/fp16.h"

#include "comm/base/dtype.h"
#include "comm/codec/codec_contract.h"

namespace syncline {
namespace {

// dtype_test.cc checks the scalar rule itself against float64 distances.
float RoundTrip(float x, uint32_t /*random*/) { return FloatFromF16(F16FromFloat(x)); }

INSTANTIATE_TEST_SUITE_P(Fp16, CodecContract,
                         ::testing::Values(CodecCase{.make = MakeFp16Codec,
                                                     .reference = RoundTrip}));

TEST(Fp16Codec, NeedsExactlyTwoBytesPerElement) {
  EXPECT_EQ(MakeFp16Codec()->MaxEncodedBytes(65536), 131072u);
  EXPECT_EQ(MakeFp16Codec()->MaxEncodedBytes(1), 2u);
}

TEST(Fp16Codec, WritesLittleEndianHalves) {
  float values[] = {1.0f, -2.5f};  // 0x3c00, 0xc100
  std::byte bytes[4];
  ASSERT_EQ(MakeFp16Codec()->Encode(values, {}, {}, bytes), 4u);
  EXPECT_EQ(bytes[0], std::byte{0x00});
  EXPECT_EQ(bytes[1], std::byte{0x3c});
  EXPECT_EQ(bytes[2], std::byte{0x00});
  EXPECT_EQ(bytes[3], std::byte{0xc1});
}

TEST(Fp16Codec, TooLargeAGradientArrivesAsInfinity) {
  // Loss scaling recognises its limit by this infinity.
  float values[] = {65519.0f, 65520.0f, -1e30f};
  std::byte bytes[6];
  const auto codec = MakeFp16Codec();
  codec->Encode(values, {}, {}, bytes);
  float sum[3] = {};
  ASSERT_TRUE(codec->DecodeAdd(bytes, 0.5f, sum).ok());
  EXPECT_EQ(sum[0], 32752.0f);
  EXPECT_EQ(sum[1], std::numeric_limits<float>::infinity());
  EXPECT_EQ(sum[2], -std::numeric_limits<float>::infinity());
}

// Checks the vector kernel on every possible upper half, with lower halves around the
// rounding borders of normal and denormal halves.
TEST(Fp16Codec, KernelEqualsTheScalarRuleOnAllUpperHalves) {
  const auto codec = MakeFp16Codec();
  std::vector<float> values(65536);
  std::vector<std::byte> bytes(2 * values.size());
  for (const uint32_t lower : {0u, 1u, 0x0fffu, 0x1000u, 0x1001u, 0x3000u, 0xffffu}) {
    for (uint32_t i = 0; i < 65536; ++i)
      values[i] = std::bit_cast<float>((i << 16) | lower);
    codec->Encode(values, {}, {}, bytes);
    for (uint32_t i = 0; i < 65536; ++i) {
      uint16_t got;
      std::memcpy(&got, bytes.data() + 2 * i, 2);
      ASSERT_EQ(got, F16FromFloat(std::bit_cast<float>((i << 16) | lower)))
          << i << " " << lower;
    }
  }
}

TEST(Fp16Codec, KernelWidensAllHalvesAsTheScalarRuleDoes) {
  std::vector<uint16_t> halves(65536);
  for (uint32_t i = 0; i < 65536; ++i) halves[i] = static_cast<uint16_t>(i);
  std::vector<float> decoded(65536);
  ASSERT_TRUE(MakeFp16Codec()->Decode(std::as_bytes(std::span(halves)), decoded).ok());
  for (uint32_t i = 0; i < 65536; ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(decoded[i]),
              std::bit_cast<uint32_t>(FloatFromF16(halves[i])))
        << i;
  }
}

}  // namespace
}  // namespace syncline
