#include "comm/codec/bf16/bf16.h"

#include "comm/base/dtype.h"
#include "comm/codec/codec_contract.h"

namespace syncline {
namespace {

// dtype_test.cc checks the scalar rule itself against float64 distances.
float RoundTrip(float x, uint32_t /*random*/) { return FloatFromBf16(Bf16FromFloat(x)); }

INSTANTIATE_TEST_SUITE_P(Bf16, CodecContract,
                         ::testing::Values(CodecCase{.make = MakeBf16Codec,
                                                     .reference = RoundTrip}));

TEST(Bf16Codec, NeedsExactlyTwoBytesPerElement) {
  EXPECT_EQ(MakeBf16Codec()->MaxEncodedBytes(65536), 131072u);
  EXPECT_EQ(MakeBf16Codec()->MaxEncodedBytes(1), 2u);
}

TEST(Bf16Codec, WritesLittleEndianUpperHalves) {
  float values[] = {1.0f, -2.0f};  // 0x3f800000, 0xc0000000
  std::byte bytes[4];
  ASSERT_EQ(MakeBf16Codec()->Encode(values, {}, bytes), 4u);
  EXPECT_EQ(bytes[0], std::byte{0x80});
  EXPECT_EQ(bytes[1], std::byte{0x3f});
  EXPECT_EQ(bytes[2], std::byte{0x00});
  EXPECT_EQ(bytes[3], std::byte{0xc0});
}

// The vector kernel over every possible upper half, with lower halves around the rounding
// border.
TEST(Bf16Codec, KernelEqualsTheScalarRuleOnAllUpperHalves) {
  const auto codec = MakeBf16Codec();
  std::vector<float> values(65536);
  std::vector<std::byte> bytes(2 * values.size());
  for (const uint32_t lower : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
    for (uint32_t i = 0; i < 65536; ++i)
      values[i] = std::bit_cast<float>((i << 16) | lower);
    codec->Encode(values, {}, bytes);
    for (uint32_t i = 0; i < 65536; ++i) {
      uint16_t got;
      std::memcpy(&got, bytes.data() + 2 * i, 2);
      ASSERT_EQ(got, Bf16FromFloat(std::bit_cast<float>((i << 16) | lower)))
          << i << " " << lower;
    }
  }
}

}  // namespace
}  // namespace syncline
