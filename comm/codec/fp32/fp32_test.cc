#include "comm/codec/fp32/fp32.h"

#include "comm/codec/codec_contract.h"

namespace syncline {
namespace {

INSTANTIATE_TEST_SUITE_P(Fp32, CodecContract,
                         ::testing::Values(CodecCase{
                             .make = MakeFp32Codec,
                             .reference = [](float x, uint32_t) { return x; }}));

TEST(Fp32Codec, NeedsExactlyFourBytesPerElement) {
  EXPECT_EQ(MakeFp32Codec()->MaxEncodedBytes(65536), 262144u);
  EXPECT_EQ(MakeFp32Codec()->MaxEncodedBytes(1), 4u);
}

}  // namespace
}  // namespace syncline
