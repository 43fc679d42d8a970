#include "comm/codec/integer/integer.h"

#include <array>
#include <cstring>

#include "comm/codec/codec_test_util.h"
#include "comm/codec/lossy_codec_contract.h"

namespace syncline {
namespace {

using enum IntegerRounding;
using enum IntegerRange;

std::string NameOfCase(const IntegerOptions& options) {
  return "Int" + std::to_string(options.bits) +
         (options.rounding == kStochastic ? "Stochastic" : "Nearest") +
         (options.range == kL2 ? "L2" : "Absmax") + (options.clip > 0 ? "Clipped" : "") +
         "Block" + std::to_string(options.block_log2);
}

std::vector<IntegerOptions> AllOptions() {
  std::vector<IntegerOptions> all;
  for (const uint32_t bits : {8u, 4u, 2u}) {
    for (const uint32_t block_log2 : {8u, 10u, 16u}) {
      for (const IntegerRounding rounding : {kNearest, kStochastic}) {
        for (const IntegerRange range : {kAbsmax, kL2}) {
          all.push_back({bits, block_log2, rounding, range});
        }
      }
    }
  }
  for (const uint32_t bits : {8u, 2u}) {
    all.push_back({.bits = bits, .rounding = kStochastic, .clip = 2.5f});
  }
  all.push_back({.bits = 2, .block_log2 = 16, .rounding = kStochastic, .clip = 1});
  return all;
}

std::vector<LossyCodecCase> Cases() {
  std::vector<LossyCodecCase> cases;
  for (const IntegerOptions& options : AllOptions()) {
    if (options.block_log2 == 10 && options.range == kL2) continue;  // enough remain
    cases.push_back(
        {NameOfCase(options), [options] { return MakeIntegerCodec(options); }});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Integer, LossyCodecContract, ::testing::ValuesIn(Cases()),
                         LossyCodecCaseName);

// Returns the norm of the scaled block.
float ReferenceNorm(std::span<const float> block, float scale) {
  std::vector<float> squares;
  for (const float value : block) squares.push_back((value * scale) * (value * scale));
  return std::sqrt(SumIn32Lanes(squares));
}

float ReferenceStep(std::span<const float> block, const IntegerOptions& options) {
  float max = 0;
  for (const float value : block) max = std::max(max, std::abs(value));
  if (max < 0x1p-119f) return 0;
  float range = max;
  if (options.range == kL2) {
    range = max * ReferenceNorm(block, 1 / max);
  }
  if (options.clip > 0) {
    const float norm = ReferenceNorm(block, 1 / max);
    const float most = options.clip * norm / std::sqrt(static_cast<float>(block.size()));
    range = max * std::min(most, 1.0f);
  }
  return std::min(range, 0x1.fffffcp127f) /
         static_cast<float>((1 << (options.bits - 1)) - 1);
}

// A second implementation of the whole format, one value at a time.
std::vector<std::byte> Reference(std::span<const float> values,
                                 const IntegerOptions& options) {
  const size_t block = size_t{1} << options.block_log2;
  const size_t blocks = (values.size() + block - 1) / block;
  const size_t codes = 4 + 4 * blocks;
  std::vector<std::byte> bytes(codes + (values.size() * options.bits + 7) / 8);
  bytes[0] = static_cast<std::byte>(options.block_log2);
  const int levels = (1 << (options.bits - 1)) - 1;
  for (size_t i = 0; i < values.size(); ++i) {
    const size_t first = i - i % block;
    const float step = ReferenceStep(
        values.subspan(first, std::min(block, values.size() - first)), options);
    std::memcpy(&bytes[4 + 4 * (i / block)], &step, 4);
    float quotient = step > 0 ? values[i] * (1 / step) : 0;
    if (options.rounding == kStochastic) {
      const auto bits = static_cast<int32_t>(kTestRandom.At(static_cast<uint32_t>(i)));
      quotient += static_cast<float>(bits) * 0x1p-32f;
    }
    const int q = std::clamp(static_cast<int>(std::nearbyint(quotient)), -levels, levels);
    const uint32_t code = static_cast<uint32_t>(q) & ((1u << options.bits) - 1);
    const size_t bit = i * options.bits;
    bytes[codes + bit / 8] |= static_cast<std::byte>(code << (bit % 8));
  }
  return bytes;
}

// Sanitizers, with which the reference takes minutes, see the sizes around one block.
#ifdef SYNCLINE_SANITIZED
constexpr auto kReferenceSizes = std::to_array<uint32_t>({0, 1, 31, 33, 65, 257});
#else
constexpr auto kReferenceSizes =
    std::to_array<uint32_t>({0,  1,  2,   3,   4,   5,   31,   32,   33,   63,
                             64, 65, 255, 256, 257, 511, 1023, 1024, 1025, 2500});
#endif

TEST(IntegerCodec, WritesTheBytesOfTheScalarReference) {
  for (const IntegerOptions& options : AllOptions()) {
    const auto codec = MakeIntegerCodec(options);
    for (const uint32_t n : kReferenceSizes) {
      for (const float size : {1.0f, 1e37f, 1e-30f}) {
        const std::vector<float> values = Gaussian(n, size);
        ASSERT_EQ(Encoded(*codec, values), Reference(values, options))
            << NameOfCase(options) << " " << n << " values of size " << size;
      }
    }
  }
}

TEST(IntegerCodec, DecodesToTheIntegerTimesTheStep) {
  std::vector<float> values;
  for (int q = -127; q <= 127; ++q) values.push_back(static_cast<float>(q) * 0.25f);
  EXPECT_EQ(RoundTrip(*MakeIntegerCodec({.bits = 8}), values), values);
  values.clear();
  for (int q = -7; q <= 7; ++q) values.push_back(static_cast<float>(q) * 4);
  EXPECT_EQ(RoundTrip(*MakeIntegerCodec({.bits = 4}), values), values);
  values = {3, -3, 0, 0, 3};
  EXPECT_EQ(RoundTrip(*MakeIntegerCodec({.bits = 2}), values), values);
}

TEST(IntegerCodec, PacksTheFirstValueIntoTheLowestBits) {
  const std::vector<float> four_bits = {7, -1, 2};
  const std::vector<std::byte> nibbles =
      Encoded(*MakeIntegerCodec({.bits = 4}), four_bits);
  ASSERT_EQ(nibbles.size(), 10u);
  EXPECT_EQ(nibbles[8], std::byte{0xf7});
  EXPECT_EQ(nibbles[9], std::byte{0x02});
  const std::vector<float> two_bits = {1, -1, 0, 1, -1};
  const std::vector<std::byte> quarters =
      Encoded(*MakeIntegerCodec({.bits = 2}), two_bits);
  ASSERT_EQ(quarters.size(), 10u);
  EXPECT_EQ(quarters[8], std::byte{0x4d});
  EXPECT_EQ(quarters[9], std::byte{0x03});
}

TEST(IntegerCodec, TakesItsBitsAndLittleMore) {
  const auto ratio = [](uint32_t bits) {
    return 4.0 * kTileElements /
           static_cast<double>(
               MakeIntegerCodec({.bits = bits})->MaxEncodedBytes(kTileElements));
  };
  EXPECT_GE(ratio(8), 3.98);
  EXPECT_GE(ratio(4), 7.93);
  EXPECT_GE(ratio(2), 15.7);
}

// The worst case of nearest rounding: all values but the largest are half a step.
TEST(IntegerCodec, KeepsItsContractionInTheWorstCase) {
  for (const uint32_t bits : {8u, 4u, 2u}) {
    const int levels = (1 << (bits - 1)) - 1;
    for (const float half : {0.5f, std::nextafter(0.5f, 0.0f)}) {
      const auto codec = MakeIntegerCodec({.bits = bits});
      std::vector<float> values(1024, half);
      values[77] = static_cast<float>(levels);
      const double lost = LostShare(*codec, values);
      const double promised = 1 - codec->traits().contraction;
      EXPECT_LE(lost, promised);
      EXPECT_GE(lost, 0.999 * promised) << "nothing tighter is true";
    }
  }
}

TEST(IntegerCodec, LosesWhatUniformStepsMustLose) {
  const std::vector<float> values = Gaussian(kTileElements);
  const auto codec = MakeIntegerCodec({.bits = 8, .block_log2 = 16});
  const std::vector<float> decoded = RoundTrip(*codec, values);
  const float step = ReferenceStep(values, {});
  double error = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    error += std::pow(double{values[i]} - decoded[i], 2);
  }
  EXPECT_NEAR(error / kTileElements, step * step / 12, 0.02 * step * step / 12);
}

TEST(IntegerCodec, BlocksTooSmallForAStepAreKeptInTheResidual) {
  const auto codec = MakeIntegerCodec({.bits = 8, .block_log2 = 8});
  std::vector<float> values(512, 0x1p-120f);
  std::fill(values.begin() + 256, values.end(), 0x1p-119f);
  std::vector<float> residual(512);
  Encoded(*codec, values, residual);
  for (size_t i = 0; i < 256; ++i) ASSERT_EQ(residual[i], values[i]);
  for (size_t i = 256; i < 512; ++i) ASSERT_LE(std::abs(residual[i]), 0x1p-140f);
}

TEST(IntegerCodec, DecodersTakeAnyBlockSize) {
  ExpectDecodersTakeAnyBlockSize([](uint32_t block_log2) {
    return MakeIntegerCodec({.bits = 4, .block_log2 = block_log2});
  });
}

TEST(IntegerCodec, RefusesStepsBlocksAndBitsThatNoEncoderWrites) {
  for (const uint32_t bits : {8u, 4u, 2u}) {
    ExpectRefusesBadBlocks(*MakeIntegerCodec({.bits = bits}), bits);
  }
}

// Values must decode to -s, 0 or s, where s is the largest magnitude after clipping.
TEST(IntegerCodec, IsTernGradWithTwoBits) {
  const std::vector<float> values = Gaussian(1000);
  float max = 0;
  for (const float value : values) max = std::max(max, std::abs(value));
  const double rms = std::sqrt(SquaredNorm(values) / 1000);
  for (const float clip : {0.0f, 2.5f, 100.0f}) {
    const auto codec =
        MakeIntegerCodec({.bits = 2, .rounding = kStochastic, .clip = clip});
    const double scale = clip == 0 ? max : std::min<double>(max, clip * rms);
    const std::vector<float> decoded = RoundTrip(*codec, values);
    for (size_t i = 0; i < decoded.size(); ++i) {
      ASSERT_GE(decoded[i] * values[i], 0) << "the sign is that of the value";
      if (decoded[i] == 0) continue;
      ASSERT_NEAR(std::abs(decoded[i]), scale, 1e-5 * scale);
    }
  }
}

TEST(IntegerCodec, ClippingIsABiasOfTheLargestAndLessNoiseOfAllOthers) {
  std::vector<float> values = Gaussian(kTileElements);
  values[5] = 40;
  const auto mean_of = [&](float clip) {
    const auto codec = MakeIntegerCodec(
        {.bits = 2, .block_log2 = 16, .rounding = kStochastic, .clip = clip});
    double sum = 0;
    std::vector<float> decoded(values.size());
    std::vector<std::byte> bytes(codec->MaxEncodedBytes(kTileElements));
    for (uint64_t step = 0; step < 20; ++step) {
      codec->Encode(values, {}, {.step = step}, bytes);
      EXPECT_TRUE(codec->Decode(bytes, decoded).ok());
      sum += decoded[5] / 20;
    }
    return std::pair(sum, LostShare(*codec, values));
  };
  const auto [all, noise] = mean_of(0);
  const auto [clipped, less_noise] = mean_of(2.5f);
  EXPECT_EQ(all, 40);
  EXPECT_NEAR(clipped, 2.5 * std::sqrt(SquaredNorm(values) / kTileElements), 1e-3);
  EXPECT_LT(less_noise, noise / 10);
  EXPECT_FALSE(MakeIntegerCodec({.bits = 2, .rounding = kStochastic, .clip = 2.5f})
                   ->traits()
                   .unbiased);
}

TEST(IntegerCodec, NamesWhatDiffersFromTheDefault) {
  EXPECT_EQ(MakeIntegerCodec({})->name(), "int8");
  EXPECT_EQ(MakeIntegerCodec({.bits = 4, .block_log2 = 8})->name(), "int4:block=256");
  EXPECT_EQ(MakeIntegerCodec({.bits = 2, .rounding = kStochastic, .clip = 2.5f})->name(),
            "int2:rounding=stochastic,clip=2.5");
  EXPECT_EQ(MakeIntegerCodec({2, 12, kStochastic, kL2})->name(),
            "int2:rounding=stochastic,range=l2,block=4096");
}

}  // namespace
}  // namespace syncline
