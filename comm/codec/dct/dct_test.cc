#include "comm/codec/dct/dct.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <string>

#include "comm/base/crc32c.h"
#include "comm/base/isa.h"
#include "comm/base/tiling.h"
#include "comm/codec/bf16/bf16.h"
#include "comm/codec/codec_test_util.h"
#include "comm/codec/dct/pieces.h"
#include "comm/codec/dct/transform.h"
#include "comm/codec/fp16/fp16.h"
#include "comm/codec/fp32/fp32.h"
#include "comm/codec/integer/integer.h"
#include "comm/codec/lossy_codec_contract.h"
#include "comm/codec/sparse/sparse.h"

namespace syncline {
namespace {

std::shared_ptr<const Codec> Top(double ratio, std::shared_ptr<const Codec> values) {
  auto top = MakeSparseCodec(
      {.selector = {.ratio = ratio, .chunk_log2 = 12}, .values = std::move(values)});
  SYNCLINE_CHECK(top.ok());
  return *std::move(top);
}

std::unique_ptr<Codec> Dct(double ratio, std::shared_ptr<const Codec> values,
                           uint32_t columns = 256) {
  return MakeDctCodec({.inner = Top(ratio, std::move(values)), .columns = columns});
}

// The same with all coefficients, exactly.
std::unique_ptr<Codec> Lossless(uint32_t columns) {
  return Dct(1, MakeFp32Codec(), columns);
}

INSTANTIATE_TEST_SUITE_P(
    Dct, LossyCodecContract,
    ::testing::Values(
        LossyCodecCase{"DeMo", [] { return Dct(1.0 / 128, MakeBf16Codec()); }},
        LossyCodecCase{"Fp32", [] { return Dct(0.1, MakeFp32Codec(), 64); }},
        LossyCodecCase{"Int8OfNarrowRows",
                       [] { return Dct(0.05, MakeIntegerCodec({.bits = 8}), 27); }},
        LossyCodecCase{"AllOfLongRows",
                       [] { return Dct(1, MakeBf16Codec(), kTileElements); }}),
    LossyCodecCaseName);

// ---- Of one size ----

// The definition, in float64.
std::vector<double> ReferenceDct(std::span<const double> x) {
  const size_t n = x.size();
  std::vector<double> y(n);
  for (size_t k = 0; k < n; ++k) {
    for (size_t j = 0; j < n; ++j) {
      y[k] += x[j] * std::cos(std::numbers::pi * static_cast<double>(k * (2 * j + 1)) /
                              static_cast<double>(2 * n));
    }
    y[k] *= std::sqrt((k == 0 ? 1.0 : 2.0) / static_cast<double>(n));
  }
  return y;
}

SYNCLINE_KERNEL void RunForward(size_t n, size_t columns, float* rows) {
  ForwardDct(DctRotationsOf(n), columns, rows);
}
SYNCLINE_KERNEL void RunBackward(size_t n, size_t columns, float* rows) {
  BackwardDct(DctRotationsOf(n), columns, rows);
}

double LengthOf(std::span<const double> x) {
  double sum = 0;
  for (const double value : x) sum += value * value;
  return std::sqrt(sum);
}

TEST(DctTransform, IsTheDefinitionInEachColumn) {
  for (size_t n = 1; n <= kMaxDctSize; n *= 2) {
    for (const size_t columns : {kDctLanes, kDctRow}) {
      const std::vector<float> x = Gaussian(static_cast<uint32_t>(n * kDctRow));
      std::vector<float> y = x;
      Kernel<RunForward>::Run(n, columns, y.data());
      std::vector<float> back = y;
      Kernel<RunBackward>::Run(n, columns, back.data());
      for (size_t column = 0; column < kDctRow; ++column) {
        std::vector<double> own;
        for (size_t j = 0; j < n; ++j) own.push_back(x[j * kDctRow + column]);
        const std::vector<double> want = ReferenceDct(own);
        const double near = 4e-7 * LengthOf(own);
        for (size_t k = 0; k < n; ++k) {
          ASSERT_NEAR(back[k * kDctRow + column], own[k], near) << k << " of " << n;
          if (column >= columns) {
            ASSERT_EQ(y[k * kDctRow + column], x[k * kDctRow + column]);
          } else {
            const size_t row = DctRotationsOf(n).RowOf(k);
            ASSERT_NEAR(y[row * kDctRow + column], want[k], near) << k << " of " << n;
          }
        }
      }
    }
  }
}

// ---- Pieces ----

std::vector<DctPiece> PiecesOf(const DctTile& tile) {
  std::vector<DctPiece> pieces;
  VisitPieces(tile, [&](const DctPiece& piece) { pieces.push_back(piece); });
  return pieces;
}

TEST(DctPieces, HaveEachElementOnce) {
  for (const size_t columns : {1u, 3u, 27u, 64u, 100u, 768u, 4096u, 50257u, 65536u}) {
    for (const size_t phase : {size_t{0}, size_t{1}, columns / 2, columns - 1}) {
      if (phase >= columns) continue;
      for (const size_t elements : {0u, 1u, 63u, 300u, 4097u, 65535u, 65536u}) {
        std::vector<int> visits(elements);
        for (const DctPiece& piece : PiecesOf({elements, columns, phase})) {
          ASSERT_LE(std::max(piece.height, piece.width), kDctSide);
          for (size_t i = 0; i < piece.height * piece.width; ++i) {
            const size_t at = piece.first + i / piece.width * piece.stride;
            ++visits.at(at + i % piece.width);
          }
        }
        ASSERT_THAT(visits, testing::Each(1))
            << columns << " " << phase << " " << elements;
      }
    }
  }
}

TEST(DctPieces, AreSquaresOfWholeRows) {
  const std::vector<DctPiece> pieces = PiecesOf({kTileElements, 1024, 0});
  ASSERT_EQ(pieces.size(), 16u);
  EXPECT_EQ(pieces[1], (DctPiece{64, 1024, 64, 64, true}));
  // 30 elements end a row; then there are two rows, and a part of one.
  EXPECT_THAT(PiecesOf({30 + 2 * 80 + 50, 80, 50}),
              testing::ElementsAre(
                  DctPiece{0, 16, 1, 16}, DctPiece{16, 8, 1, 8}, DctPiece{24, 4, 1, 4},
                  DctPiece{28, 2, 1, 2}, DctPiece{30, 80, 2, 64, true},
                  DctPiece{94, 80, 2, 16, true}, DctPiece{190, 32, 1, 32},
                  DctPiece{222, 16, 1, 16}, DctPiece{238, 2, 1, 2}));
  EXPECT_THAT(PiecesOf({200, 1000, 0}),
              testing::ElementsAre(DctPiece{0, 64, 3, 64}, DctPiece{192, 8, 1, 8}));
}

// ---- Tiles ----

// A second implementation of a piece, in float64: rows, then columns.
std::vector<double> ReferencePiece(const DctPiece& piece, std::span<const float> tile) {
  std::vector<std::vector<double>> rows;
  for (size_t i = 0; i < piece.height; ++i) {
    std::vector<double> row;
    for (size_t j = 0; j < piece.width; ++j) {
      row.push_back(tile[piece.first + i * piece.stride + j]);
    }
    rows.push_back(ReferenceDct(row));
  }
  std::vector<double> coefficients;
  for (size_t j = 0; j < piece.width; ++j) {
    std::vector<double> column;
    for (const std::vector<double>& row : rows) column.push_back(row[j]);
    if (piece.transforms_columns) column = ReferenceDct(column);
    coefficients.insert(coefficients.end(), column.begin(), column.end());
  }
  return coefficients;
}

struct TileCase {
  uint32_t columns = 256;
  uint64_t first_element = 0;
  uint32_t elements = 0;
};
constexpr TileCase kTileCases[] = {
    {256, 0, 65536},        {256, 131072, 5000}, {300, 65536, 65536},   {27, 65536, 9999},
    {50257, 131072, 65536}, {768, 65536, 65535}, {65536, 65536, 65536}, {1, 0, 77}};

TEST(DctCodec, SendsTheCoefficientsOfTheDefinition) {
  for (const auto& [columns, first, elements] : kTileCases) {
    const auto codec = Lossless(columns);
    const std::vector<float> values = Gaussian(elements);
    std::vector<std::byte> bytes(codec->MaxEncodedBytes(elements));
    bytes.resize(codec->Encode(values, {}, {.first_element = first}, bytes));
    std::vector<float> sent(elements);
    ASSERT_TRUE(codec->basis()->DecodeCoefficients(bytes, first, sent).ok());
    std::vector<float> transformed = values;
    codec->basis()->ToCoefficients(first, transformed);
    EXPECT_EQ(sent, transformed);
    size_t at = 0;
    for (const DctPiece& piece : PiecesOf({elements, columns, first % columns})) {
      for (const double want : ReferencePiece(piece, values)) {
        ASSERT_NEAR(sent[at], want, 5e-5) << "coefficient " << at << " of " << columns;
        ++at;
      }
    }
    codec->basis()->FromCoefficients(first, transformed);
    std::vector<float> decoded(elements);
    ASSERT_TRUE(codec->Decode(bytes, decoded).ok());
    EXPECT_EQ(decoded, transformed);
    for (uint32_t i = 0; i < elements; ++i) ASSERT_NEAR(decoded[i], values[i], 1e-5);
  }
}

// The test runs at each level of instruction sets, with the same figures.
TEST(DctCodec, GivesTheSameBitsOnEveryMachine) {
  const auto crc_of = [](const TileCase& tile) {
    std::vector<float> values(tile.elements);
    for (uint32_t i = 0; i < tile.elements; ++i) {
      values[i] = static_cast<float>((i * 2654435761u) >> 8) * 0x1p-23f - 1;
    }
    const auto codec = Lossless(tile.columns);
    codec->basis()->ToCoefficients(tile.first_element, values);
    const uint32_t there = Crc32c(std::as_bytes(std::span(values)));
    codec->basis()->FromCoefficients(tile.first_element, values);
    return there ^ Crc32c(std::as_bytes(std::span(values)));
  };
  std::vector<uint32_t> crcs;
  for (const TileCase& tile : kTileCases) crcs.push_back(crc_of(tile));
  EXPECT_THAT(crcs, testing::ElementsAre(2365298563, 77868794, 4017950678, 1351452846,
                                         162149314, 3990595292, 485379357, 2215443938));
}

// The purpose of the codec: a slow wave over rows and columns is one coefficient of each
// piece.
TEST(DctCodec, FewCoefficientsHoldWhatNeighboursHaveInCommon) {
  std::vector<float> values(64 * 256);
  for (size_t i = 0; i < values.size(); ++i) {
    const double row = (2.0 * static_cast<double>(i / 256) + 1) * std::numbers::pi / 128;
    const double column =
        (2.0 * static_cast<double>(i % 64) + 1) * std::numbers::pi / 128;
    values[i] = static_cast<float>(std::cos(3 * row) * std::cos(5 * column));
  }
  const auto codec = Dct(1.0 / 4096, MakeFp32Codec());
  EXPECT_LT(LostShare(*codec, values), 1e-12);
  EXPECT_GT(LostShare(*Top(1.0 / 4096, MakeFp32Codec()), values), 0.99);
}

TEST(DctCodec, OfATensorHasItsColumns) {
  const auto codec = Lossless(256);
  const auto columns_of = [&](uint64_t rows, uint64_t columns) {
    const auto own = codec->ForMatrix(rows, columns);
    uint32_t sent = 0;
    std::memcpy(&sent, Encoded(**own, Gaussian(77)).data(), 4);
    return sent;
  };
  EXPECT_EQ(columns_of(10, 300), 300u);
  EXPECT_EQ(columns_of(100'000, 1), kTileElements) << "a vector";
  EXPECT_EQ(columns_of(2, uint64_t{1} << 40), 1u << 31);
}

TEST(DctCodec, HugeValuesAreNotSent) {
  std::vector<float> values = Gaussian(5000);
  values[77] = 0x1p96f;
  const auto codec = Lossless(256);
  std::vector<float> residual(values.size());
  const std::vector<std::byte> bytes = Encoded(*codec, values, residual);
  EXPECT_EQ(codec->Nonzeros(bytes, 5000), 0u);
  EXPECT_EQ(residual, values);
  EXPECT_LT(codec->traits().largest, 0x1p96f) << "senders take another codec";
  EXPECT_EQ(Dct(0.1, MakeFp16Codec())->traits().largest,
            MakeFp16Codec()->traits().largest / 64);
}

TEST(DctCodec, RefusesHeadersThatNoEncoderWrites) {
  const auto codec = Dct(0.1, MakeBf16Codec());
  const std::vector<std::byte> good = Encoded(*codec, Gaussian(77));
  ASSERT_TRUE(codec->Validate(good, 77).ok());
  const auto refusal = [&](size_t at, uint8_t byte) {
    std::vector<std::byte> bad = good;
    bad[at] = std::byte{byte};
    return std::string(codec->Validate(bad, 77).message());
  };
  EXPECT_THAT(refusal(0, 1), testing::HasSubstr("expected 256 columns"));
  EXPECT_EQ(refusal(4, 99), "") << "any column";
  EXPECT_THAT(refusal(5, 1), testing::HasSubstr("column 256 of 256"));
  EXPECT_THAT(refusal(8, 17), testing::HasSubstr("codec 17"));
  EXPECT_THAT(refusal(10, 5), testing::HasSubstr("pieces of 2^5"));
  EXPECT_NE(refusal(11, 1), "");
  EXPECT_NE(refusal(16, 7), "") << "the inner codec's header";
  std::vector<float> out(77);
  EXPECT_THAT(std::string(codec->basis()->DecodeCoefficients(good, 5, out).message()),
              testing::HasSubstr("claims column 0, but starts at column 5"));
}

}  // namespace
}  // namespace syncline
