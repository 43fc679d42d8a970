// Compares the kernels' source on the emulated GPU with the codecs of comm/codec.
#include "comm/codec/cuda/codecs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "comm/base/tiling.h"
#include "comm/codec/cuda/codecs_for_test.h"

namespace syncline {
namespace {

constexpr SynclineCudaCodec kSign = {.id = 5};
constexpr SynclineCudaCodec kInt8 = {.id = 6, .block_log2 = 10};
constexpr SynclineCudaCodec kInt8Stochastic = {
    .id = 6, .block_log2 = 10, .stochastic = 1};
constexpr SynclineCudaCodec kTopK = {.id = 16};
constexpr SynclineCudaCodec kTopKBf16 = {.id = 16, .values = 2, .ratio = 0.2};
constexpr SynclineCudaCodec kAllCodecs[] = {kSign, kInt8, kInt8Stochastic, kTopK,
                                            kTopKBf16};
constexpr DType kAllTypes[] = {DType::kF32, DType::kBf16, DType::kF16};

constexpr uint64_t kPart = 8192;

void ExpectSameForAllCodecs(Case run, ValueKind kind) {
  for (const SynclineCudaCodec& codec : kAllCodecs) {
    run.codec = codec;
    ASSERT_NO_FATAL_FAILURE(ExpectSameAsCpu(run, MakeInput(run, kind)));
  }
}

class CudaCodec : public testing::TestWithParam<SynclineCudaCodec> {};

TEST_P(CudaCodec, EncodesEverySmallTensorAsTheCpuDoes) {
  for (uint64_t n = 0; n <= 257; ++n) {
    const Case run = {
        .codec = GetParam(), .dtype = kAllTypes[n % 3], .elements = n, .seed = n + 1};
    ASSERT_NO_FATAL_FAILURE(ExpectSameAsCpu(run, MakeInput(run, kAllKinds[n % 6])));
  }
}

INSTANTIATE_TEST_SUITE_P(All, CudaCodec, testing::ValuesIn(kAllCodecs));

TEST(CudaCodecs, EncodeAroundPartsAndTilesAsTheCpuDoes) {
  uint64_t seed = 1;
  for (const uint64_t edge : {kPart, 3 * kPart, uint64_t{kTileElements}}) {
    for (const uint64_t n : {edge - 1, edge, edge + 1, edge + 129}) {
      ASSERT_NO_FATAL_FAILURE(ExpectSameForAllCodecs(
          {.dtype = kAllTypes[seed % 3], .elements = n, .seed = seed},
          kAllKinds[seed % 6]));
      ++seed;
    }
  }
}

TEST(CudaCodecs, EncodeAllKindsOfValuesOfAllTypesAsTheCpuDoes) {
  for (const ValueKind kind : kAllKinds) {
    for (const DType dtype : kAllTypes) {
      ASSERT_NO_FATAL_FAILURE(ExpectSameForAllCodecs(
          {.dtype = dtype, .decay = 0.75f, .elements = 2 * kPart + 77, .seed = 5}, kind));
    }
  }
}

TEST(CudaCodecs, EncodeTheGradientAloneWithoutMemory) {
  for (const DType dtype : kAllTypes) {
    ASSERT_NO_FATAL_FAILURE(ExpectSameForAllCodecs(
        {.dtype = dtype, .memory = Memory::kNone, .elements = kPart + 5},
        ValueKind::kHeavyTailed));
  }
}

class CudaBlockSizes : public testing::TestWithParam<uint32_t> {};

TEST_P(CudaBlockSizes, GiveTheScalesOfTheCpu) {
  for (SynclineCudaCodec codec : {kSign, kInt8, kInt8Stochastic}) {
    codec.block_log2 = GetParam();
    for (const uint64_t n : {uint64_t{300}, 5 * kPart - 40, kTileElements + kPart}) {
      const Case run = {.codec = codec, .elements = n, .seed = n};
      ASSERT_NO_FATAL_FAILURE(ExpectSameAsCpu(run, MakeInput(run, ValueKind::kGaussian)));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Log2, CudaBlockSizes, testing::Range(8u, 17u));

// The second tile begins at a multiple of 2^32, where the keys of random bits change, so
// it needs another launch.
TEST(CudaCodecs, EncodeInSeveralLaunchesAsInOne) {
  const uint64_t first = (uint64_t{1} << 32) - kTileElements;
  ASSERT_NO_FATAL_FAILURE(ExpectSameForAllCodecs(
      {.dtype = DType::kBf16, .elements = 2 * kTileElements + 50, .first_element = first},
      ValueKind::kGaussian));
}

TEST(CudaCodecs, RoundAtRandomWithoutLeavingTheLevels) {
  // One in 2^19 of the largest values would be rounded to 128.
  const Case run = {.codec = kInt8Stochastic, .elements = 12 * kTileElements};
  Input input = MakeInput(run, ValueKind::kHuge);
  for (float& value : input.values) value = std::copysign(0.7f, value);
  ExpectSameAsCpu(run, input);
}

TEST(CudaCodecs, LeaveTilesThatAreNotFiniteAlone) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  uint32_t type = 0;
  for (const SynclineCudaCodec& codec : kAllCodecs) {
    const Case run = {.codec = codec,
                      .dtype = kAllTypes[type++ % 3],
                      .elements = 4 * kTileElements - 9};
    Input input = MakeInput(run, ValueKind::kGaussian);
    Replace(input, run, kTileElements, -kInf);                  // the first of tile 1
    Replace(input, run, 3 * kTileElements - 1, std::nanf(""));  // the last of tile 2
    const Encoded encoded = EncodeOnDevice(run, input);
    EXPECT_NE(encoded.tile_bytes[0], 0u);
    EXPECT_EQ(encoded.tile_bytes[1], 0u);
    EXPECT_EQ(encoded.tile_bytes[2], 0u);
    EXPECT_NE(encoded.tile_bytes[3], 0u);
    ASSERT_NO_FATAL_FAILURE(ExpectSameAsCpu(run, input, encoded));
  }
}

TEST(CudaCodecs, LeaveTilesWhoseSumOverflowsAlone) {
  for (const SynclineCudaCodec& codec : kAllCodecs) {
    const Case run = {.codec = codec, .elements = 2 * kPart};
    Input input = MakeInput(run, ValueKind::kGaussian);
    input.values[kPart + 17] = std::numeric_limits<float>::max();
    input.residual[kPart + 17] = std::numeric_limits<float>::max();
    const Encoded encoded = EncodeOnDevice(run, input);
    EXPECT_EQ(encoded.tile_bytes[0], 0u);
    ASSERT_NO_FATAL_FAILURE(ExpectSameAsCpu(run, input, encoded));
  }
}

TEST(CudaTopK, TakesTheSameOfEqualMagnitudesInEveryPart) {
  for (const double ratio : {1e-6, 0.001, 0.01, 0.3}) {
    for (const uint32_t values : {1u, 2u}) {
      const Case run = {.codec = {.id = 16, .values = values, .ratio = ratio},
                        .elements = kTileElements,
                        .seed = values};
      ASSERT_NO_FATAL_FAILURE(ExpectSameAsCpu(run, MakeInput(run, ValueKind::kTies)));
    }
  }
}

TEST(CudaTopK, SendsAllWhenPositionsWouldCostMore) {
  // 31/32 of a part are 7,936 values.
  for (const double ratio : {0.5, 7936.5 / kPart, 7937.5 / kPart, 1.0}) {
    for (const ValueKind kind : {ValueKind::kGaussian, ValueKind::kSparse}) {
      const Case run = {.codec = {.id = 16, .ratio = ratio}, .elements = kPart};
      ASSERT_NO_FATAL_FAILURE(ExpectSameAsCpu(run, MakeInput(run, kind)));
    }
  }
}

TEST(CudaTopK, NeverSendsZeros) {
  const Case run = {.codec = {.id = 16, .ratio = 0.5}, .elements = kPart + 3};
  Input input = MakeInput(run, ValueKind::kGaussian);
  for (uint64_t i = 0; i < run.elements; ++i) {
    input.values[i] = i % 100 == 7 ? -1e-40f : -0.0f;
    input.residual[i] = -0.0f;
  }
  ASSERT_NO_FATAL_FAILURE(ExpectSameAsCpu(run, input));
  const Encoded encoded = EncodeOnDevice(run, input);
  EXPECT_EQ(CpuCodecOf(run.codec)->Nonzeros(encoded.Tile(0), kPart + 3), 82u);
}

TEST(CudaTopK, FindsAThresholdThatDiffersInTheLastBit) {
  const Case run = {.codec = {.id = 16, .ratio = 0.25}, .elements = 2 * kPart};
  Input input = MakeInput(run, ValueKind::kGaussian);
  for (uint64_t i = 0; i < run.elements; ++i) {
    const auto bits = static_cast<uint32_t>(0x3f800000 + i * 7919 % 5000);
    input.values[i] = std::bit_cast<float>(bits | (i % 3 == 0 ? 0x80000000u : 0));
    input.residual[i] = 0;
  }
  ExpectSameAsCpu(run, input);
}

TEST(CudaCodecs, EncodeTheSameWhateverTheOrderOfThreads) {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    ASSERT_NO_FATAL_FAILURE(ExpectSameForAllCodecs(
        {.elements = 3 * kPart + 200, .seed = seed}, ValueKind::kTies));
  }
}

// A value that rounds to infinity in BF16 would leave an infinite residual, and its tile
// would never be sent again.
TEST(CudaTopK, SendsTheLargestBf16OfWhatWouldBecomeInfinite) {
  constexpr float kMax = std::numeric_limits<float>::max();
  const Case run = {.codec = {.id = 16, .values = 2, .ratio = 0.01}, .elements = kPart};
  Input input = MakeInput(run, ValueKind::kGaussian);
  input.values[3] = kMax;
  input.values[4000] = -kLargestToBf16;
  input.values[4001] = std::bit_cast<float>(0xff7f8000u);
  for (const uint64_t i : {3u, 4000u, 4001u}) input.residual[i] = 0;
  Encoded encoded = EncodeOnDevice(run, input);
  ASSERT_NO_FATAL_FAILURE(ExpectSameAsCpu(run, input, encoded));
  EXPECT_EQ(encoded.residual[3], kMax - 0x1.fep127f);
  EXPECT_EQ(encoded.residual[4001], -0x1p119f);
  // The rest must be sent with the next step.
  std::ranges::fill(input.values, 0.0f);
  input.residual = encoded.residual;
  encoded = EncodeOnDevice(run, input);
  EXPECT_GT(encoded.tile_bytes[0], 0u);
  EXPECT_LT(std::abs(encoded.residual[3]), 0x1p112f);
}

TEST(CudaCodecs, FindTheStepInMemoryOfTheDevice) {
  for (const SynclineCudaCodec& codec : kAllCodecs) {
    Case run = {.codec = codec, .elements = kTileElements + 100, .seed = 9};
    run.units = {.loss_scale = 4, .learning_rate = 0.1f};
    Input input = MakeInput(run, ValueKind::kGaussian);
    input.tile_units = {{.loss_scale = 2, .learning_rate = 0.3f}, {}};
    const Encoded by_value = EncodeOnDevice(run, input);
    run.step_at = StepAt::kDevice;
    const Encoded by_pointer = EncodeOnDevice(run, input);
    EXPECT_EQ(by_value.residual, by_pointer.residual) << NameOf(run);
    EXPECT_EQ(by_value.tile_bytes, by_pointer.tile_bytes) << NameOf(run);
    EXPECT_NE(by_value.residual, input.residual) << NameOf(run);
    EXPECT_EQ(std::memcmp(by_value.out.data(), by_pointer.out.data(),
                          by_value.out.size() * sizeof(Line)),
              0)
        << NameOf(run);
    for (const SynclineCudaUnits& units : by_pointer.tile_units) {
      EXPECT_EQ(units.loss_scale, 4) << NameOf(run);
      EXPECT_EQ(units.learning_rate, 0.1f) << NameOf(run);
    }
  }
}

TEST(CudaCodecs, RefuseToCaptureWhatEachReplayWouldRepeat) {
  Case run = {.codec = kInt8Stochastic, .captures = true, .elements = 100};
  Input input = MakeInput(run, ValueKind::kGaussian);
  EXPECT_EQ(EncodeOnDevice(run, input).error, 900);  // cudaErrorStreamCaptureUnsupported
  run.codec = kSign;
  EXPECT_EQ(EncodeOnDevice(run, input).error, 0);
  input.tile_units.resize(1);
  EXPECT_EQ(EncodeOnDevice(run, input).error, 900);
  run.step_at = StepAt::kDevice;
  EXPECT_EQ(EncodeOnDevice(run, input).error, 0);
  run.codec = kInt8Stochastic;
  EXPECT_EQ(EncodeOnDevice(run, input).error, 0);
}

TEST(CudaCodecs, RefuseWhatTheyCannotEncode) {
  const Case good = {.codec = kSign, .elements = 100};
  const Input input = MakeInput(good, ValueKind::kGaussian);
  constexpr SynclineCudaCodec kBad[] = {
      {.id = 2},
      {.id = 7},
      {.id = 5, .block_log2 = 7},
      {.id = 6, .block_log2 = 17},
      {.id = 6, .stochastic = 2},
      {.id = 16, .ratio = 0},
      {.id = 16, .ratio = 1.5},
      {.id = 16, .values = 3},
  };
  for (const SynclineCudaCodec& codec : kBad) {
    Case run = good;
    run.codec = codec;
    const Encoded encoded = EncodeOnDevice(run, input);
    EXPECT_NE(encoded.error, 0) << NameOf(run);
    EXPECT_EQ(encoded.residual, input.residual) << NameOf(run);
  }
  Case off_a_tile = good;
  off_a_tile.first_element = 100;
  EXPECT_NE(EncodeOnDevice(off_a_tile, input).error, 0);
  Case of_another_interface = good;
  of_another_interface.codec.struct_bytes -= 8;
  EXPECT_NE(EncodeOnDevice(of_another_interface, input).error, 0);
}

// Encodes on the CPU what the device must read but does not write itself.
Encoded EncodedByCpu(const Case& run, const Input& input) {
  const std::unique_ptr<Codec> codec = CpuCodecOf(run.codec);
  Encoded encoded;
  encoded.stride = (codec->MaxEncodedBytes(kTileElements) + 63) / 64 * 64;
  const uint32_t tiles = TilesOf(run.elements);
  encoded.out.resize(tiles * encoded.stride / sizeof(Line));
  for (uint32_t tile = 0; tile < tiles; ++tile) {
    const uint64_t first = uint64_t{tile} * kTileElements;
    const uint32_t n = TileElements(run.elements, tile);
    auto* const bytes = reinterpret_cast<std::byte*>(encoded.out.data());
    encoded.tile_bytes.push_back(static_cast<uint32_t>(
        codec->Encode(std::span(input.values).subspan(first, n), {}, {},
                      {bytes + tile * encoded.stride, encoded.stride})));
  }
  return encoded;
}

void ExpectDecodesAsCpu(const Case& run, const Encoded& encoded) {
  constexpr float kWeight = -0.3f;
  const std::unique_ptr<Codec> codec = CpuCodecOf(run.codec);
  const std::vector<float> start = MakeInput(run, ValueKind::kGaussian).residual;
  const Decoded decoded = DecodeOnDevice(run, encoded, kWeight, start);
  ASSERT_EQ(decoded.error, 0);
  std::vector<float> expected = start;
  for (uint32_t tile = 0; tile < encoded.tile_bytes.size(); ++tile) {
    ASSERT_EQ(decoded.refused[tile], 0u) << NameOf(run);
    if (encoded.tile_bytes[tile] == 0) continue;
    const uint64_t first = uint64_t{tile} * kTileElements;
    const uint32_t n = TileElements(run.elements, tile);
    ASSERT_TRUE(codec
                    ->DecodeAdd(encoded.Tile(tile), kWeight,
                                std::span(expected).subspan(first, n))
                    .ok());
  }
  for (uint64_t i = 0; i < run.elements; ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(decoded.accumulator[i]),
              std::bit_cast<uint32_t>(expected[i]))
        << NameOf(run) << " element " << i;
  }
}

TEST(CudaCodecs, DecodeToTheBitsOfTheCpu) {
  for (const uint64_t n : {uint64_t{1}, uint64_t{6}, uint64_t{255}, kPart + 1,
                           uint64_t{kTileElements}, kTileElements + kPart + 3}) {
    for (const SynclineCudaCodec& codec : kAllCodecs) {
      const Case run = {.codec = codec, .elements = n, .seed = n};
      const Encoded encoded =
          EncodeOnDevice(run, MakeInput(run, ValueKind::kHeavyTailed));
      ASSERT_NO_FATAL_FAILURE(ExpectDecodesAsCpu(run, encoded));
    }
    const Case bf16 = {.codec = {.id = 2}, .elements = n};
    ASSERT_NO_FATAL_FAILURE(ExpectDecodesAsCpu(
        bf16, EncodedByCpu(bf16, MakeInput(bf16, ValueKind::kHeavyTailed))));
  }
}

TEST(CudaCodecs, DecodeAnyBlockSizeWhateverTheirOwn) {
  Case run = {.codec = {.id = 5, .block_log2 = 8}, .elements = kPart + 100};
  const Encoded encoded = EncodeOnDevice(run, MakeInput(run, ValueKind::kGaussian));
  run.codec.block_log2 = 12;
  ExpectDecodesAsCpu(run, encoded);
}

TEST(CudaCodecs, AddNothingOfATileThatWasNotEncoded) {
  const Case run = {.codec = kInt8, .elements = kTileElements + 50};
  Input input = MakeInput(run, ValueKind::kGaussian);
  Replace(input, run, 3, std::nanf(""));
  ExpectDecodesAsCpu(run, EncodeOnDevice(run, input));
}

// Applies the damage of a round to a valid encoding.
void Damage(Encoded& encoded, int round, std::mt19937_64& random) {
  const uint32_t bytes = encoded.tile_bytes[0];
  auto* const data = reinterpret_cast<std::byte*>(encoded.out.data());
  if (round == 0) {  // the bits beyond the last element
    data[bytes - 1] ^= std::byte{0x80};
  } else if (round == 1) {  // duplicates the first position of a sparse list
    std::memcpy(data + 14, data + 12, 2);
  } else if (round == 2) {
    encoded.tile_bytes[0] += 1;
  } else if (round == 3) {
    encoded.tile_bytes[0] -= 1;
  } else {
    const uint64_t at = round < 30 ? random() % 16 : random() % bytes;
    data[at] ^= std::byte{1} << random() % 8;
  }
}

// The device must refuse exactly the damage that the CPU refuses, and then change
// nothing.
TEST(CudaCodecs, RefuseDamageAsTheCpuDoes) {
  std::mt19937_64 random(3);
  uint32_t refused = 0;
  for (const SynclineCudaCodec& codec : kAllCodecs) {
    const Case run = {.codec = codec, .elements = 601};
    const Encoded good = EncodeOnDevice(run, MakeInput(run, ValueKind::kGaussian));
    for (int round = 0; round < 60; ++round) {
      Encoded damaged = good;
      Damage(damaged, round, random);
      const std::vector<float> start(run.elements, 1.0f);
      std::vector<float> expected = start;
      const bool fits = CpuCodecOf(codec)->DecodeAdd(damaged.Tile(0), 2, expected).ok();
      const Decoded decoded = DecodeOnDevice(run, damaged, 2, start);
      ASSERT_EQ(decoded.refused[0], fits ? 0u : 1u) << NameOf(run) << " round " << round;
      ASSERT_EQ(std::memcmp(decoded.accumulator.data(), expected.data(),
                            expected.size() * sizeof(float)),
                0)
          << NameOf(run) << " round " << round;
      refused += decoded.refused[0];
    }
  }
  EXPECT_GT(refused, 50u);
}

}  // namespace
}  // namespace syncline
