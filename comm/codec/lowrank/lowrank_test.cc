#include "comm/codec/lowrank/lowrank.h"

#include <array>
#include <cstring>

#include "comm/base/crc32c.h"
#include "comm/base/tiling.h"
#include "comm/codec/codec_test_util.h"
#include "comm/codec/lossy_codec_contract.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;
using Doubles = std::vector<double>;
using enum FactorType;

LossyCodecCase Case(const std::string& name, const LowRankOptions& options) {
  return {name, [options] { return MakeLowRankCodec(options); }};
}

INSTANTIATE_TEST_SUITE_P(
    LowRank, LossyCodecContract,
    ::testing::Values(Case("Default", {}), Case("Rank1", {.rank = 1}),
                      Case("Fp32", {.factors = kFp32}),
                      Case("Narrow", {.rank = 2, .columns = 5}),
                      Case("RowsBeginInsideTheTile", {.rank = 3, .columns = 300}),
                      Case("Wide", {.rank = 1, .columns = 9000, .factors = kFp32}),
                      Case("Rank64", {.rank = 64, .columns = 200, .factors = kFp32}),
                      Case("RowsLongerThanTiles", {.columns = 70000}),
                      Case("Vector", {.columns = 1})),
    LossyCodecCaseName);

// ---- A matrix with known singular values, and the least that any factors lose ----

// Returns `count` orthonormal columns of `n` numbers.
std::vector<Doubles> Orthonormal(size_t n, size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  std::vector<Doubles> columns(count, Doubles(n));
  for (size_t j = 0; j < count; ++j) {
    for (double& value : columns[j]) value = normal(random);
    for (int pass = 0; pass < 2; ++pass) {
      for (size_t k = 0; k < j; ++k) {
        const double common = std::inner_product(columns[j].begin(), columns[j].end(),
                                                 columns[k].begin(), 0.0);
        for (size_t i = 0; i < n; ++i) columns[j][i] -= common * columns[k][i];
      }
    }
    const double norm = std::sqrt(std::inner_product(columns[j].begin(), columns[j].end(),
                                                     columns[j].begin(), 0.0));
    for (double& value : columns[j]) value /= norm;
  }
  return columns;
}

std::vector<float> WithSingularValues(size_t rows, size_t columns,
                                      std::span<const double> singular) {
  const std::vector<Doubles> u = Orthonormal(rows, singular.size(), 1);
  const std::vector<Doubles> v = Orthonormal(columns, singular.size(), 2);
  std::vector<float> matrix;
  for (size_t r = 0; r < rows; ++r) {
    for (size_t c = 0; c < columns; ++c) {
      double sum = 0;
      for (size_t j = 0; j < singular.size(); ++j) sum += singular[j] * u[j][r] * v[j][c];
      matrix.push_back(static_cast<float>(sum));
    }
  }
  return matrix;
}

constexpr std::array kSingular = {8.0, 5.0, 3.0, 2.0, 1.5, 1.0, 0.7, 0.5};

double LeastLoss(size_t rank) {
  double lost = 0;
  double all = 0;
  for (size_t j = 0; j < kSingular.size(); ++j) {
    all += kSingular[j] * kSingular[j];
    if (j >= rank) lost += kSingular[j] * kSingular[j];
  }
  return lost / all;
}

// Returns the losses when the same tile is encoded repeatedly with its memory.
std::vector<double> LossesWithMemory(const Codec& codec, std::span<const float> values,
                                     int steps) {
  const auto n = static_cast<uint32_t>(values.size());
  std::vector<float> memory(codec.MemoryValues(n));
  std::vector<float> residual(n);
  std::vector<std::byte> bytes(codec.MaxEncodedBytes(n));
  std::vector<double> losses;
  for (int step = 0; step < steps; ++step) {
    codec.Encode(values, residual, {.memory = memory}, bytes);
    losses.push_back(SquaredNorm(residual) / SquaredNorm(values));
  }
  return losses;
}

TEST(LowRankCodec, AMatrixOfLowRankArrivesWhole) {
  const std::vector<float> values =
      WithSingularValues(250, 256, std::span(kSingular).first(4));
  const LowRankOptions options = {.rank = 4, .columns = 256, .factors = kFp32};
  EXPECT_LT(LostShare(*MakeLowRankCodec(options), values), 1e-10);
  EXPECT_LT(LostShare(*MakeLowRankCodec({.rank = 4, .columns = 256}), values), 1e-4);
}

TEST(LowRankCodec, WarmStartsComeNearTheBestFactors) {
  const std::vector<float> values = WithSingularValues(256, 256, kSingular);
  for (const uint32_t rank : {2u, 4u}) {
    const auto codec = MakeLowRankCodec({.rank = rank, .columns = 256, .factors = kFp32});
    const double cold = LostShare(*codec, values);
    const std::vector<double> warm = LossesWithMemory(*codec, values, 30);
    EXPECT_GT(warm.back(), LeastLoss(rank) * (1 - 1e-5)) << "no factors lose less";
    // The last column is started again each time: rank - 1 columns are the best ones.
    EXPECT_LT(warm.back(), LeastLoss(rank - 1)) << rank;
    EXPECT_LT(warm.back(), 0.99 * cold) << rank;
  }
}

// For orthogonal rows (or columns) of equal length the bound is attained.
TEST(LowRankCodec, KeepsItsContractionInTheWorstCase) {
  for (const uint32_t columns : {64u, 256u, 1024u}) {
    const size_t rows = kTileElements / columns;
    std::vector<float> values(kTileElements, 0.0f);
    for (size_t i = 0; i < std::min<size_t>(rows, columns); ++i) {
      values[i * columns + i] = 3;
    }
    for (const FactorType factors : {kBf16, kFp32}) {
      const auto codec =
          MakeLowRankCodec({.rank = 1, .columns = columns, .factors = factors});
      const double least = static_cast<double>(std::min<size_t>(rows, columns));
      const double contraction = codec->traits().contraction;
      EXPECT_GT(contraction, 0.7 / (least + 1)) << columns;
      const double lost = LostShare(*codec, values);
      EXPECT_LE(lost, 1 - contraction) << columns;
      EXPECT_GE(lost, 0.999 * (1 - 1 / least)) << columns;
    }
  }
}

// ---- The bytes ----

struct Sent {
  uint32_t columns = 0;
  uint32_t phase = 0;
  uint16_t rank = 0;
  uint8_t number_bytes = 0;
  std::vector<float> numbers = {};
};

Sent ReadSent(std::span<const std::byte> bytes) {
  Sent sent;
  std::memcpy(&sent.columns, &bytes[0], 4);
  std::memcpy(&sent.phase, &bytes[4], 4);
  std::memcpy(&sent.rank, &bytes[8], 2);
  sent.number_bytes = std::to_integer<uint8_t>(bytes[10]);
  for (size_t at = 12; at < bytes.size(); at += sent.number_bytes) {
    uint32_t bits = 0;
    std::memcpy(&bits, &bytes[at], sent.number_bytes);
    sent.numbers.push_back(
        std::bit_cast<float>(sent.number_bytes == 2 ? bits << 16 : bits));
  }
  return sent;
}

std::vector<std::byte> EncodedAt(const Codec& codec, std::span<const float> values,
                                 uint64_t first_element) {
  std::vector<std::byte> bytes(
      codec.MaxEncodedBytes(static_cast<uint32_t>(values.size())));
  const size_t used = codec.Encode(values, {}, {.first_element = first_element}, bytes);
  return {bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(used)};
}

TEST(LowRankCodec, DecodesToTheProductOfItsFactorsBitForBit) {
  for (const FactorType factors : {kBf16, kFp32}) {
    for (const uint64_t first : {0u, 1u, 299u, 300u, 65536u}) {
      const std::vector<float> values = Gaussian(5000);
      const auto codec =
          MakeLowRankCodec({.rank = 3, .columns = 300, .factors = factors});
      const std::vector<std::byte> bytes = EncodedAt(*codec, values, first);
      const Sent sent = ReadSent(bytes);
      EXPECT_EQ(sent.columns, 300u);
      EXPECT_EQ(sent.phase, first % 300);
      ASSERT_EQ(sent.rank, 3);
      const size_t rows = (sent.phase + 5000 + 299) / 300;
      ASSERT_EQ(sent.numbers.size(), 3 * (rows + 300));
      std::vector<float> decoded(5000);
      ASSERT_TRUE(codec->Decode(bytes, decoded).ok());
      for (size_t i = 0; i < decoded.size(); ++i) {
        const size_t row = (sent.phase + i) / 300;
        const size_t column = (sent.phase + i) % 300;
        float want = 0;
        for (size_t j = 0; j < 3; ++j) {
          want +=
              sent.numbers[j * rows + row] * sent.numbers[3 * rows + j * 300 + column];
        }
        ASSERT_EQ(decoded[i], want) << i;
      }
    }
  }
}

// P must have orthonormal columns and Q must be M^T P, in double precision.
TEST(LowRankCodec, SendsAnOrthonormalBasisAndTheTileInIt) {
  const std::vector<float> values = Gaussian(65000);
  const auto codec = MakeLowRankCodec({.rank = 4, .columns = 301, .factors = kFp32});
  const Sent sent = ReadSent(EncodedAt(*codec, values, 65536));
  const size_t rows = (sent.phase + 65000 + 300) / 301;
  const float* p = sent.numbers.data();
  const float* q = p + 4 * rows;
  for (size_t j = 0; j < 4; ++j) {
    for (size_t k = 0; k < 4; ++k) {
      const double product =
          std::inner_product(p + j * rows, p + (j + 1) * rows, p + k * rows, 0.0);
      EXPECT_NEAR(product, j == k ? 1 : 0, 1e-6);
    }
    Doubles want(301);
    for (size_t i = 0; i < values.size(); ++i) {
      want[(sent.phase + i) % 301] +=
          double{p[j * rows + (sent.phase + i) / 301]} * values[i];
    }
    for (size_t c = 0; c < 301; ++c) ASSERT_NEAR(q[j * 301 + c], want[c], 1e-4);
  }
}

// Servers and workers with different CPUs must hold the same view. The expected number is
// the same on any CPU: this test runs with each instruction set.
TEST(LowRankCodec, EncodesToTheSameBytesOnEveryInstructionSet) {
  std::vector<float> values(kTileElements);
  for (uint32_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(static_cast<int32_t>(kTestRandom.At(i))) * 0x1p-31f;
  }
  const auto codec = MakeLowRankCodec({.rank = 5, .columns = 300});
  std::vector<float> memory(codec->MemoryValues(kTileElements));
  std::vector<std::byte> bytes(codec->MaxEncodedBytes(kTileElements));
  uint32_t crc = 0;
  for (uint64_t step = 0; step < 3; ++step) {
    const size_t used = codec->Encode(
        values, {}, {.step = step, .first_element = 65536, .memory = memory}, bytes);
    crc ^= Crc32c(ByteView(bytes).first(used));
  }
  EXPECT_EQ(crc, 0x53553b71u);
}

TEST(LowRankCodec, ShortTilesTravelAsTheyAre) {
  const auto codec = MakeLowRankCodec({.rank = 4, .columns = 256, .factors = kFp32});
  const std::vector<float> values = Gaussian(1000);
  const std::vector<std::byte> bytes = Encoded(*codec, values);
  EXPECT_EQ(bytes.size(), 12 + 4 * values.size());
  EXPECT_EQ(RoundTrip(*codec, values), values);
}

TEST(LowRankCodec, ValuesThatProductsCannotHoldStayInTheResidual) {
  const auto codec = MakeLowRankCodec({.factors = kFp32});
  std::vector<float> values(5000, 0.0f);
  const double lost = LostShare(*codec, Gaussian(5000));
  for (const float size : {0x1p90f, 0x1p-90f}) {
    EXPECT_NEAR(LostShare(*codec, Gaussian(5000, size)), lost, 1e-3) << size;
  }
  for (const float size : {0x1p127f, 0x1p96f, 0x1p-97f, 0x1p-149f}) {
    values[77] = size;
    EXPECT_THAT(RoundTrip(*codec, values), ::testing::Each(0.0f)) << size;
    std::vector<float> residual(values.size());
    Encoded(*codec, values, residual);
    EXPECT_EQ(residual, values);
  }
}

TEST(LowRankCodec, RefusesHeadersAndFactorsThatNoEncoderWrites) {
  const auto codec = MakeLowRankCodec({});
  const std::vector<std::byte> good = Encoded(*codec, Gaussian(9000));
  ASSERT_TRUE(codec->Validate(good, 9000).ok());
  const auto refuses = [&](size_t at, std::initializer_list<uint8_t> bytes) {
    std::vector<std::byte> bad = good;
    for (const uint8_t byte : bytes) bad[at++] = std::byte{byte};
    return codec->Validate(bad, 9000).code() == absl::StatusCode::kInvalidArgument;
  };
  EXPECT_TRUE(refuses(0, {0, 2})) << "512 columns";
  EXPECT_TRUE(refuses(4, {0, 1})) << "column 256";
  EXPECT_TRUE(refuses(4, {255})) << "one row more";
  EXPECT_TRUE(refuses(8, {3})) << "rank 3";
  EXPECT_TRUE(refuses(8, {0, 1})) << "rank 256";
  EXPECT_TRUE(refuses(10, {4})) << "FP32";
  EXPECT_TRUE(refuses(11, {1})) << "not zero";
  EXPECT_TRUE(refuses(12, {0x80, 0x7f})) << "infinity";
  EXPECT_TRUE(refuses(good.size() - 2, {0xc0, 0xff})) << "NaN";
}

// ---- Tensors ----

TEST(LowRankCodec, IsMadeForMatricesThatItHalvesAtLeast) {
  const auto codec = MakeLowRankCodec({.rank = 4});
  const auto refusal = [&](uint64_t rows, uint64_t columns) {
    return std::string(codec->ForMatrix(rows, columns).status().message());
  };
  EXPECT_EQ((*codec->ForMatrix(1000, 300))->name(), "lowrank:rank=4,columns=300");
  EXPECT_EQ((*codec->ForMatrix(8192, 16))->MaxEncodedBytes(kTileElements),
            12u + 2 * 4 * (4097 + 16));
  EXPECT_THAT(refusal(1 << 20, 1), HasSubstr("vector"));
  EXPECT_THAT(refusal(1, 1 << 20), HasSubstr("vector"));
  EXPECT_THAT(refusal(100, 8192), HasSubstr("(8 rows of 8192)"));
  EXPECT_THAT(refusal(100, 1 << 20), HasSubstr("lower rank"));
  EXPECT_THAT(refusal(1 << 20, 8), HasSubstr("half of the numbers"));
  EXPECT_TRUE(MakeLowRankCodec({.rank = 3})->ForMatrix(100, 8192).ok());
}

}  // namespace
}  // namespace syncline
