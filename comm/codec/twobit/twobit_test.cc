#include "comm/codec/twobit/twobit.h"

#include <cstring>

#include "comm/codec/codec_test_util.h"
#include "comm/codec/lossy_codec_contract.h"

namespace syncline {
namespace {

INSTANTIATE_TEST_SUITE_P(
    TwoBit, LossyCodecContract,
    ::testing::Values(
        LossyCodecCase{"Of4096", [] { return MakeTwoBitCodec({}); }},
        LossyCodecCase{"Of256", [] { return MakeTwoBitCodec({.block_log2 = 8}); }},
        LossyCodecCase{"Of65536", [] { return MakeTwoBitCodec({.block_log2 = 16}); }}),
    LossyCodecCaseName);

// A second implementation, block by block and bin by bin.
std::vector<std::byte> Reference(const std::vector<float>& values, uint32_t block_log2) {
  const size_t block = size_t{1} << block_log2;
  std::vector<std::byte> bytes = {std::byte(block_log2), std::byte{0}, std::byte{0},
                                  std::byte{0}};
  std::vector<uint32_t> codes;
  for (size_t first = 0; first < values.size(); first += block) {
    const size_t n = std::min(block, values.size() - first);
    double magnitudes = 0;
    for (size_t i = 0; i < n; ++i) magnitudes += std::abs(double{values[first + i]});
    const double limit = 1.25 * (magnitudes / static_cast<double>(n));
    std::vector<std::vector<float>> bins(4);
    for (size_t i = 0; i < n; ++i) {
      const float value = values[first + i];
      const bool is_large = std::abs(double{value}) > limit;
      codes.push_back((value < 0 ? 1u : 0u) + (is_large ? 2u : 0u));
      bins[codes.back()].push_back(value);
    }
    for (const std::vector<float>& bin : bins) {
      double sum = 0;
      for (const float value : bin) sum += value;
      const auto mean =
          bin.empty() ? 0.0f : static_cast<float>(sum / static_cast<double>(bin.size()));
      const auto* mean_bytes = reinterpret_cast<const std::byte*>(&mean);
      bytes.insert(bytes.end(), mean_bytes, mean_bytes + sizeof(mean));
    }
  }
  codes.resize((codes.size() + 3) / 4 * 4);
  for (size_t i = 0; i < codes.size(); i += 4) {
    bytes.push_back(
        std::byte(codes[i] | codes[i + 1] << 2 | codes[i + 2] << 4 | codes[i + 3] << 6));
  }
  return bytes;
}

TEST(TwoBitCodec, WritesTheBytesOfTheScalarReference) {
  for (const uint32_t block_log2 : {8u, 12u, 16u}) {
    const auto codec = MakeTwoBitCodec({.block_log2 = block_log2});
    for (const uint32_t n : {1u, 2u, 3u, 4u, 5u, 255u, 256u, 257u, 1024u, 4095u, 4096u,
                             4097u, 5001u, 65535u, 65536u}) {
      std::vector<float> values = LogNormal(n, 2);
      values[n / 2] = n % 2 == 0 ? 0.0f : -0.0f;
      ASSERT_EQ(Encoded(*codec, values), Reference(values, block_log2))
          << n << " in blocks of 2^" << block_log2;
    }
  }
}

TEST(TwoBitCodec, DecodesToTheMeansOfItsBins) {
  const std::vector<float> values = {1, 2, -3, -1, 10, 12, -20, 0};
  // The mean magnitude is 49 / 8, so that 7.66 and more is large.
  EXPECT_THAT(RoundTrip(*MakeTwoBitCodec({}), values),
              ::testing::ElementsAre(1, 1, -2, -2, 11, 11, -20, 1));
}

TEST(TwoBitCodec, WhatABlockLosesAddsUpToNothing) {
  const std::vector<float> values = LogNormal(4096, 1);
  std::vector<float> residual(values.size());
  Encoded(*MakeTwoBitCodec({}), values, residual);
  const double sum = std::accumulate(residual.begin(), residual.end(), 0.0);
  EXPECT_NEAR(sum, 0, 1e-7 * 4096 * std::sqrt(SquaredNorm(values)));
}

TEST(TwoBitCodec, LosesAnEighthOfAGaussianAndLittleOfItsLargestValues) {
  const auto codec = MakeTwoBitCodec({});
  std::vector<float> values = Gaussian(kTileElements);
  EXPECT_NEAR(LostShare(*codec, values), 0.1176, 0.006);
  std::ranges::sort(values, std::greater<>(),
                    [](float value) { return std::abs(value); });
  values.resize(1024);
  EXPECT_NEAR(LostShare(*codec, values), 0.008, 0.003);
}

TEST(TwoBitCodec, DecodersTakeAnyBlockSize) {
  ExpectDecodersTakeAnyBlockSize(
      [](uint32_t block_log2) { return MakeTwoBitCodec({.block_log2 = block_log2}); });
}

TEST(TwoBitCodec, RefusesMeansBlocksAndBitsThatNoEncoderWrites) {
  const auto codec = MakeTwoBitCodec({});
  const std::vector<std::byte> good = Encoded(*codec, Gaussian(77));
  const auto refuses = [&](size_t at, const std::vector<uint8_t>& bytes) {
    std::vector<std::byte> bad = good;
    for (const uint8_t byte : bytes) bad[at++] = std::byte{byte};
    return codec->Validate(bad, 77).code() == absl::StatusCode::kInvalidArgument;
  };
  ASSERT_TRUE(codec->Validate(good, 77).ok());
  EXPECT_TRUE(refuses(0, {7})) << "block of 128";
  EXPECT_TRUE(refuses(0, {17})) << "block of 131,072";
  EXPECT_TRUE(refuses(1, {1})) << "not zero";
  for (const size_t bin : {0u, 1u, 2u, 3u}) {
    EXPECT_TRUE(refuses(4 + 4 * bin, {0, 0, 0x80, 0x7f})) << "infinity, bin " << bin;
    EXPECT_TRUE(refuses(4 + 4 * bin, {0, 0, 0xc0, 0xff})) << "NaN, bin " << bin;
  }
  EXPECT_TRUE(refuses(good.size() - 1, {4})) << "element 78";
  EXPECT_FALSE(refuses(good.size() - 1, {3}));
}

TEST(TwoBitCodec, NamesWhatDiffersFromTheDefault) {
  EXPECT_EQ(MakeTwoBitCodec({})->name(), "twobit");
  EXPECT_EQ(MakeTwoBitCodec({.block_log2 = 8})->name(), "twobit:block=256");
}

}  // namespace
}  // namespace syncline
