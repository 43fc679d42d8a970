#include "comm/codec/sparse/index_coder.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "comm/codec/sparse/bit_stream.h"
#include "comm/codec/sparse/selector.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using Indices = std::vector<uint16_t>;
using Bytes = std::vector<std::byte>;

Indices RandomIndices(uint32_t n, double density, uint32_t seed) {
  std::mt19937 random(seed);
  std::bernoulli_distribution taken(density);
  Indices indices;
  for (uint32_t i = 0; i < n; ++i) {
    if (taken(random)) indices.push_back(static_cast<uint16_t>(i));
  }
  return indices;
}

Indices Neighbours(uint32_t first, uint32_t count) {
  Indices indices(count);
  std::iota(indices.begin(), indices.end(), static_cast<uint16_t>(first));
  return indices;
}

struct Encoded {
  Bytes bytes = {};
  IndexClaim claim = {};
};

Encoded Encode(const Indices& indices, uint32_t n, const IndexCoding& coding) {
  Encoded encoded{
      .bytes = Bytes(coding.bytes, std::byte{0xff}),
      .claim = {
          .coding = coding, .count = static_cast<uint32_t>(indices.size()), .n = n}};
  WriteIndices(indices, coding, encoded.bytes);
  return encoded;
}

absl::StatusOr<Indices> Read(const Encoded& encoded) {
  IndexList list(std::min(encoded.claim.count, kTileElements));
  const absl::Status status = ReadIndices(encoded.bytes, encoded.claim, list);
  if (!status.ok()) return status;
  return Indices(list.view().begin(), list.view().end());
}

void ExpectRefused(const Encoded& encoded, std::string_view why) {
  EXPECT_EQ(Read(encoded).status().code(), absl::StatusCode::kInvalidArgument) << why;
}

// Counts Rice bits by the definition, one at a time.
size_t RiceBits(const Indices& indices, uint32_t b) {
  size_t bits = 0;
  int64_t last = -1;
  for (const uint16_t i : indices) {
    const auto gap = static_cast<uint64_t>(i - last - 1);
    bits += (gap >> b) + 1 + b;
    last = i;
  }
  return bits;
}

std::vector<IndexCoding> AllCodings(const Indices& indices, uint32_t n) {
  std::vector<IndexCoding> codings = {
      {.coder = IndexCoder::kU16, .bytes = static_cast<uint32_t>(2 * indices.size())},
      {.coder = IndexCoder::kBitmap, .bytes = (n + 7) / 8}};
  for (uint8_t b = 0; b <= kMaxRiceBits; ++b) {
    codings.push_back({.coder = IndexCoder::kRice,
                       .rice_bits = b,
                       .bytes = static_cast<uint32_t>((RiceBits(indices, b) + 7) / 8)});
  }
  if (indices.size() == n) codings.push_back({.coder = IndexCoder::kEvery});
  return codings;
}

void ExpectRoundTrips(const Indices& indices, uint32_t n) {
  size_t smallest = SIZE_MAX;
  for (const IndexCoding& coding : AllCodings(indices, n)) {
    smallest = std::min<size_t>(smallest, coding.bytes);
    const auto read = Read(Encode(indices, n, coding));
    ASSERT_TRUE(read.ok()) << read.status();
    ASSERT_EQ(*read, indices) << IndexCoderName(coding.coder) << " " << n;
  }
  const IndexCoding chosen = ChooseIndexCoding(indices, n);
  ASSERT_LE(chosen.bytes, (n + 7) / 8);
  // The search for the Rice parameter looks only near the value that is best for random
  // gaps.
  ASSERT_LE(chosen.bytes, smallest + smallest / 4 + 1) << n << " " << indices.size();
  const auto read = Read(Encode(indices, n, chosen));
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ(*read, indices);
}

TEST(IndexCoder, ReadsWhatItWroteForEverySize) {
  for (uint32_t n = 0; n <= 257; ++n) {
    for (const double density : {0.0, 0.01, 0.2, 0.9, 1.0}) {
      ASSERT_NO_FATAL_FAILURE(ExpectRoundTrips(RandomIndices(n, density, n), n));
    }
  }
  for (const uint32_t n : {65535u, 65536u}) {
    for (const double density : {0.0, 0.0001, 0.001, 0.01, 0.1, 0.5, 0.99, 1.0}) {
      ASSERT_NO_FATAL_FAILURE(ExpectRoundTrips(RandomIndices(n, density, n), n));
    }
    for (const Indices& indices : {Indices{0}, Indices{static_cast<uint16_t>(n - 1)},
                                   Indices{0, static_cast<uint16_t>(n - 1)},
                                   Neighbours(1000, 500), Neighbours(1, n - 1)}) {
      ASSERT_NO_FATAL_FAILURE(ExpectRoundTrips(indices, n));
    }
  }
}

TEST(IndexCoder, TakesTheCoderThatFits) {
  constexpr uint32_t n = 65536;
  const auto coder = [](const Indices& indices) {
    return ChooseIndexCoding(indices, n).coder;
  };
  EXPECT_EQ(coder(RandomIndices(n, 0.01, 1)), IndexCoder::kRice);
  EXPECT_EQ(coder(RandomIndices(n, 0.5, 1)), IndexCoder::kBitmap);
  EXPECT_EQ(coder(Neighbours(0, n)), IndexCoder::kEvery);
  EXPECT_EQ(ChooseIndexCoding({}, n).bytes, 0u);
  EXPECT_EQ(coder({0, 60000}), IndexCoder::kU16);
}

TEST(IndexCoder, IsNearTheEntropyOfRandomPositions) {
  for (const auto& [density, entropy] :
       {std::pair{0.001, 11.4}, {0.01, 8.1}, {0.05, 5.7}}) {
    const Indices indices = RandomIndices(65536, density, 3);
    const double bits = 8.0 * ChooseIndexCoding(indices, 65536).bytes;
    EXPECT_LE(bits / static_cast<double>(indices.size()), 1.05 * entropy) << density;
  }
}

TEST(IndexCoder, WritesRiceAsDocumented) {
  // Gaps 1 and 5 with b = 1. Gap 1: no zero, a one, then 1. Gap 5: two zeros, a one, then
  // 1. In order of the bits, lowest first: 1 1 0 0 1 1.
  const Encoded encoded =
      Encode({1, 7}, 100, {.coder = IndexCoder::kRice, .rice_bits = 1, .bytes = 1});
  // The gap 1 has the high part 0 and the low bit 1.
  EXPECT_EQ(encoded.bytes, Bytes{std::byte{0b110011}});
}

TEST(IndexCoder, RefusesWrongLengths) {
  const Indices indices = RandomIndices(1000, 0.05, 1);
  for (const IndexCoding& coding : AllCodings(indices, 1000)) {
    Encoded shorter = Encode(indices, 1000, coding);
    shorter.bytes.pop_back();
    ExpectRefused(shorter, "bytes missing");
    shorter.claim.coding.bytes -= 1;
    ExpectRefused(shorter, "consistently short");
    Encoded longer = Encode(indices, 1000, coding);
    longer.bytes.push_back(std::byte{0});
    ExpectRefused(longer, "a byte too many");
    longer.claim.coding.bytes += 1;
    ExpectRefused(longer, "consistently long");
    Encoded more = Encode(indices, 1000, coding);
    more.claim.count += 1;
    ExpectRefused(more, "one position more than written");
    more.claim.count -= 2;
    ExpectRefused(more, "one position less than written");
  }
}

TEST(IndexCoder, RefusesPositionsOutsideTheTile) {
  for (const IndexCoding& coding : AllCodings({3, 99}, 100)) {
    Encoded encoded = Encode({3, 99}, 100, coding);
    encoded.claim.n = 99;
    ExpectRefused(encoded, IndexCoderName(coding.coder));
  }
  ExpectRefused({.claim = {.count = kTileElements + 1, .n = kTileElements + 1}}, "n");
  ExpectRefused({.claim = {.count = 5, .n = 4}}, "count");
}

TEST(IndexCoder, RefusesPositionsOutOfOrder) {
  const IndexCoding u16 = {.coder = IndexCoder::kU16, .bytes = 6};
  ExpectRefused(Encode({1, 3, 2}, 100, u16), "descending");
  ExpectRefused(Encode({1, 2, 2}, 100, u16), "twice");
  ExpectRefused(Encode({9, 65535, 1}, 65536, u16), "after the last");
}

TEST(IndexCoder, RefusesPaddingThatIsNotZero) {
  for (const IndexCoding& coding :
       {IndexCoding{.coder = IndexCoder::kBitmap, .bytes = 1},
        IndexCoding{.coder = IndexCoder::kRice, .rice_bits = 1, .bytes = 1}}) {
    Encoded encoded = Encode({1}, 5, coding);
    ASSERT_TRUE(Read(encoded).ok());
    encoded.bytes[0] |= std::byte{0x80};
    ExpectRefused(encoded, IndexCoderName(coding.coder));
  }
}

TEST(IndexCoder, RefusesCodersAndParametersThatDoNotExist) {
  Encoded encoded = Encode({1}, 5, {.coder = IndexCoder::kRice, .bytes = 1});
  encoded.claim.coding.rice_bits = 16;
  ExpectRefused(encoded, "Rice parameter");
  encoded = Encode({1}, 5, {.coder = IndexCoder::kBitmap, .bytes = 1});
  encoded.claim.coding.rice_bits = 1;
  ExpectRefused(encoded, "Rice parameter of a bitmap");
  for (int coder = 6; coder < 256; ++coder) {
    encoded = {.bytes = {}, .claim = {.count = 0, .n = 5}};
    encoded.claim.coding.coder = static_cast<IndexCoder>(coder);
    ExpectRefused(encoded, "coder");
  }
  ExpectRefused({.claim = {.coding = {.coder = IndexCoder::kEvery}, .count = 4, .n = 5}},
                "every one of more");
}

TEST(IndexCoder, RefusesRiceBitsWithoutAnEnd) {
  for (const std::byte filler : {std::byte{0}, std::byte{0xff}}) {
    for (const uint8_t b : {0, 1, 15}) {
      Encoded endless{
          .bytes = Bytes(8192, filler),
          .claim = {.coding = {.coder = IndexCoder::kRice, .rice_bits = b, .bytes = 8192},
                    .count = 10,
                    .n = 65536}};
      ExpectRefused(endless, "endless");
    }
  }
}

TEST(IndexCoder, WritesWholeBlocksAsBitsOfBlocks) {
  for (const uint32_t n : {1u, 255u, 256u, 257u, 1000u, 65535u, 65536u}) {
    const uint32_t blocks = (n + 255) / 256;
    for (const uint32_t stride : {1u, 2u, 3u}) {
      Indices indices;
      for (uint32_t i = 0; i < n; ++i) {
        if ((blocks - 1 - i / 256) % stride == 0) {
          indices.push_back(static_cast<uint16_t>(i));
        }
      }
      Encoded encoded = Encode(indices, n, BlockCoding(n));
      EXPECT_EQ(encoded.bytes.size(), (blocks + 7) / 8);
      const auto read = Read(encoded);
      ASSERT_TRUE(read.ok()) << read.status();
      ASSERT_EQ(*read, indices);
      encoded.claim.count -= 1;
      ExpectRefused(encoded, "part of a block");
      encoded = Encode(indices, n, BlockCoding(n));
      if (blocks % 8 != 0) {
        encoded.bytes.back() |= std::byte{0x80};
        ExpectRefused(encoded, "padding");
      }
    }
  }
}

TEST(IndexCoder, AcceptsOnlyBytesThatItCouldHaveWritten) {
  std::mt19937 random(7);
  int accepted = 0;
  for (int trial = 0; trial < 200'000; ++trial) {
    const uint32_t n = random() % 100 + 1;
    Encoded encoded{.bytes = Bytes(random() % 14)};
    for (std::byte& byte : encoded.bytes) {
      byte = static_cast<std::byte>(random() & random());
    }
    const auto coder = static_cast<IndexCoder>(random() % 6);
    if (coder == IndexCoder::kSeed) continue;
    encoded.claim = {
        .coding = {.coder = coder,
                   .rice_bits = static_cast<uint8_t>(
                       coder == IndexCoder::kRice ? random() % 8 : 0),
                   .bytes = static_cast<uint32_t>(encoded.bytes.size())},
        .count = static_cast<uint32_t>(random() % (encoded.bytes.size() * 4 + 1)),
        .n = n};
    const auto read = Read(encoded);
    if (!read.ok()) continue;
    ++accepted;
    ASSERT_EQ(read->size(), encoded.claim.count);
    for (size_t j = 1; j < read->size(); ++j) ASSERT_LT((*read)[j - 1], (*read)[j]);
    if (!read->empty()) {
      ASSERT_LT(read->back(), n);
    }
    ASSERT_EQ(Encode(*read, n, encoded.claim.coding).bytes, encoded.bytes);
  }
  EXPECT_GT(accepted, 1000);
}

}  // namespace
}  // namespace syncline
