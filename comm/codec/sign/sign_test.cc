#include "comm/codec/sign/sign.h"

#include <cstring>

#include "comm/codec/codec_test_util.h"
#include "comm/codec/frame.h"
#include "comm/codec/lossy_codec_contract.h"

namespace syncline {
namespace {

INSTANTIATE_TEST_SUITE_P(
    Sign, LossyCodecContract,
    ::testing::Values(
        LossyCodecCase{"Mean", [] { return MakeSignCodec({}); }},
        LossyCodecCase{"MeanOf256", [] { return MakeSignCodec({.block_log2 = 8}); }},
        LossyCodecCase{"MeanOf65536", [] { return MakeSignCodec({.block_log2 = 16}); }},
        LossyCodecCase{"One", [] { return MakeSignCodec({.scale = SignScale::kOne}); }}),
    LossyCodecCaseName);

void Append(std::vector<std::byte>& bytes, const void* data, size_t n) {
  const auto* first = static_cast<const std::byte*>(data);
  bytes.insert(bytes.end(), first, first + n);
}

// A second implementation of the whole format, one value at a time.
std::vector<std::byte> Reference(std::span<const float> values, uint32_t block_log2) {
  std::vector<std::byte> bytes;
  Append(bytes, &block_log2, 4);
  const size_t block = size_t{1} << block_log2;
  for (size_t first = 0; first < values.size(); first += block) {
    const size_t n = std::min(block, values.size() - first);
    std::vector<float> magnitudes;
    for (size_t i = 0; i < n; ++i) magnitudes.push_back(std::abs(values[first + i]));
    const float scale = SumIn32Lanes(magnitudes) / static_cast<float>(n);
    Append(bytes, &scale, 4);
  }
  std::vector<std::byte> bits((values.size() + 7) / 8);
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] < 0) bits[i / 8] |= std::byte{1} << (i % 8);
  }
  Append(bytes, bits.data(), bits.size());
  return bytes;
}

TEST(SignCodec, WritesTheBytesOfTheScalarReference) {
  for (const uint32_t block_log2 : {8u, 12u, 16u}) {
    const auto codec = MakeSignCodec({.block_log2 = block_log2});
    for (uint32_t n = 0; n <= 600; ++n) {
      const std::vector<float> values = Gaussian(n);
      ASSERT_EQ(Encoded(*codec, values), Reference(values, block_log2)) << n;
    }
    for (const uint32_t n : {4095u, 4097u, 65535u, 65536u}) {
      const std::vector<float> values = Gaussian(n);
      ASSERT_EQ(Encoded(*codec, values), Reference(values, block_log2)) << n;
    }
  }
}

TEST(SignCodec, DecodesToTheScaleOfTheBlockWithTheSign) {
  const auto codec = MakeSignCodec({.block_log2 = 8});
  std::vector<float> values(300, 1.5f);
  for (size_t i = 0; i < values.size(); i += 3) values[i] = -0.5f;
  values[1] = -0.0f;
  values[256] = 0.25f;
  const std::vector<std::byte> bytes = Encoded(*codec, values);
  std::vector<float> decoded(300);
  ASSERT_TRUE(codec->Decode(bytes, decoded).ok());
  float scales[2];
  std::memcpy(scales, bytes.data() + 4, sizeof(scales));
  for (size_t i = 0; i < decoded.size(); ++i) {
    ASSERT_EQ(decoded[i], std::copysign(scales[i / 256], values[i] < 0 ? -1 : 1)) << i;
  }
}

TEST(SignCodec, IsMoreThan31TimesSmallerThanFp32WithItsFrame) {
  const size_t bytes =
      sizeof(TileHeader) + MakeSignCodec({})->MaxEncodedBytes(kTileElements);
  EXPECT_GE(4.0 * kTileElements / static_cast<double>(bytes), 31);
}

// The share of |x|^2 that is lost, computed from the moments of these distributions:
// 1 - (E|x|)^2 / E[x^2]. Any scale other than the mean loses more.
TEST(SignCodec, LosesWhatTheMeanMagnitudeMustLose) {
  const auto codec = MakeSignCodec({});
  std::vector<float> gaussian = Gaussian(kTileElements);
  std::mt19937 random(1);
  std::exponential_distribution<float> exponential;
  std::vector<float> laplace(kTileElements);
  for (size_t i = 0; i < laplace.size(); ++i) {
    laplace[i] = std::copysign(exponential(random), gaussian[i]);
  }
  std::vector<float> sparse = gaussian;
  for (size_t i = 0; i < sparse.size(); ++i) sparse[i] *= random() % 20 == 0 ? 1 : 0;
  EXPECT_NEAR(LostShare(*codec, gaussian), 1 - 2 / 3.14159265, 0.01);
  EXPECT_NEAR(LostShare(*codec, laplace), 0.5, 0.01);
  EXPECT_NEAR(LostShare(*codec, sparse), 1 - 0.05 * 2 / 3.14159265, 0.01);
}

TEST(SignCodec, WithScaleOneTheSumOfWorkersIsTheirVote) {
  const auto codec = MakeSignCodec({.scale = SignScale::kOne});
  const std::vector<float> values[] = {{0.1f, -9, 3}, {-5, -1, 2}, {4, 1e-6f, 1}};
  std::vector<float> votes(3);
  for (const std::vector<float>& worker : values) {
    ASSERT_TRUE(codec->DecodeAdd(Encoded(*codec, worker), 1, votes).ok());
  }
  EXPECT_THAT(votes, ::testing::ElementsAre(1, -1, 3));
}

TEST(SignCodec, DecodersTakeAnyBlockSize) {
  ExpectDecodersTakeAnyBlockSize(
      [](uint32_t block_log2) { return MakeSignCodec({.block_log2 = block_log2}); });
}

TEST(SignCodec, RefusesScalesBlocksAndBitsThatNoEncoderWrites) {
  ExpectRefusesBadBlocks(*MakeSignCodec({}), 1);
}

TEST(SignCodec, NamesWhatDiffersFromTheDefault) {
  EXPECT_EQ(MakeSignCodec({})->name(), "sign");
  EXPECT_EQ(MakeSignCodec({.block_log2 = 8})->name(), "sign:block=256");
  EXPECT_EQ(MakeSignCodec({.block_log2 = 9, .scale = SignScale::kOne})->name(),
            "sign:scale=one,block=512");
}

}  // namespace
}  // namespace syncline
