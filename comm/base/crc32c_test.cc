#include "comm/base/crc32c.h"

#include <array>
#include <random>
#include <string_view>
#include <vector>

#include "gtest/gtest.h"

namespace syncline {
namespace {

// One bit at a time, directly from the definition.
uint32_t Oracle(ByteView bytes) {
  uint32_t state = 0xffffffffu;
  for (std::byte byte : bytes) {
    state ^= static_cast<uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) {
      state = (state >> 1) ^ (0x82f63b78u & (0u - (state & 1)));
    }
  }
  return ~state;
}

std::vector<std::byte> RandomBytes(size_t size) {
  std::mt19937 random(20240601);
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

TEST(Crc32c, GivesTheVectorsOfRfc3720) {
  std::array<std::byte, 32> bytes{};
  EXPECT_EQ(Crc32c(bytes), 0x8a9136aau);
  bytes.fill(std::byte{0xff});
  EXPECT_EQ(Crc32c(bytes), 0x62a8ab43u);
  for (size_t i = 0; i < 32; ++i) bytes[i] = static_cast<std::byte>(i);
  EXPECT_EQ(Crc32c(bytes), 0x46dd794eu);
  for (size_t i = 0; i < 32; ++i) bytes[i] = static_cast<std::byte>(31 - i);
  EXPECT_EQ(Crc32c(bytes), 0x113fdb5cu);
  const std::string_view digits = "123456789";
  EXPECT_EQ(Crc32c(std::as_bytes(std::span(digits))), 0xe3069283u);
  EXPECT_EQ(Crc32c({}), 0u);
}

TEST(Crc32c, BothPathsEqualTheBitwiseOracleAtEverySizeAndAlignment) {
  const std::vector<std::byte> bytes = RandomBytes(16);
  const std::vector<std::byte> many = RandomBytes(3 * 4096 * 2 + 3 * 256 * 2 + 100);
  for (size_t offset = 0; offset < 16; ++offset) {
    for (size_t size = 0; offset + size <= bytes.size(); ++size) {
      const ByteView piece = ByteView(bytes).subspan(offset, size);
      ASSERT_EQ(Crc32c(piece), Oracle(piece)) << offset << " " << size;
      ASSERT_EQ(Crc32cPortable(piece), Oracle(piece)) << offset << " " << size;
    }
  }
  for (size_t size :
       {767u, 768u, 769u, 1535u, 1536u, 12287u, 12288u, 12289u, 13063u, 26000u}) {
    const ByteView piece = ByteView(many).subspan(1, size);
    EXPECT_EQ(Crc32c(piece), Oracle(piece)) << size;
    EXPECT_EQ(Crc32cPortable(piece), Oracle(piece)) << size;
  }
}

TEST(Crc32c, ContinuesFromTheCrcOfWhatCameBefore) {
  const std::vector<std::byte> bytes = RandomBytes(20000);
  const uint32_t whole = Crc32c(bytes);
  for (size_t cut : {0u, 1u, 7u, 8u, 60u, 12288u, 19999u, 20000u}) {
    const ByteView view(bytes);
    EXPECT_EQ(Crc32c(view.subspan(cut), Crc32c(view.first(cut))), whole) << cut;
  }
}

TEST(Crc32c, NoticesEverySingleBitFlip) {
  std::vector<std::byte> bytes = RandomBytes(60);
  const uint32_t right = Crc32c(bytes);
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    bytes[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    EXPECT_NE(Crc32c(bytes), right) << bit;
    bytes[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
  }
}

}  // namespace
}  // namespace syncline
