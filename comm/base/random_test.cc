#include "comm/base/random.h"

#include <array>
#include <bit>
#include <cmath>
#include <unordered_set>
#include <vector>

#include "gtest/gtest.h"

namespace syncline {
namespace {

constexpr uint32_t kDraws = 1 << 20;

// Returns the deviation of the counts from an even spread, in standard deviations of
// chi-squared.
template <size_t kCells>
double Unevenness(const std::array<uint32_t, kCells>& counts) {
  double total = 0;
  for (const uint32_t count : counts) total += count;
  const double expected = total / kCells;
  double chi_squared = 0;
  for (const uint32_t count : counts) {
    chi_squared += (count - expected) * (count - expected) / expected;
  }
  return (chi_squared - (kCells - 1)) / std::sqrt(2.0 * (kCells - 1));
}

// Returns sequences as they are used: over neighbouring elements, steps, tensors and
// seeds.
std::vector<std::vector<uint32_t>> Sequences() {
  std::vector<std::vector<uint32_t>> sequences(4, std::vector<uint32_t>(kDraws));
  for (uint32_t i = 0; i < kDraws; ++i) {
    sequences[0][i] = RandomBits(0, 0, 0, 0).At(i);
    sequences[1][i] = RandomBits(7, i, 0, 0).At(5);
    sequences[2][i] = RandomBits(7, 9, i, 0).At(5);
    sequences[3][i] = RandomBits(i, 9, 3, 0).At(5);
  }
  return sequences;
}

TEST(RandomBits, AreEvenInTheUpperAndTheLowerByte) {
  for (const auto& sequence : Sequences()) {
    std::array<uint32_t, 256> low = {};
    std::array<uint32_t, 256> high = {};
    for (const uint32_t bits : sequence) {
      ++low[bits & 0xff];
      ++high[bits >> 24];
    }
    EXPECT_LT(std::abs(Unevenness(low)), 5);
    EXPECT_LT(std::abs(Unevenness(high)), 5);
  }
}

TEST(RandomBits, EachBitIsSetHalfTheTime) {
  for (const auto& sequence : Sequences()) {
    for (int bit = 0; bit < 32; ++bit) {
      double set = 0;
      for (const uint32_t bits : sequence) set += (bits >> bit) & 1;
      EXPECT_NEAR(set / kDraws, 0.5, 5 * 0.5 / std::sqrt(kDraws)) << bit;
    }
  }
}

TEST(RandomBits, NeighboursAreIndependent) {
  for (const auto& sequence : Sequences()) {
    for (const uint32_t distance : {1u, 2u, 16u, 256u, 4096u}) {
      std::array<uint32_t, 256> pairs = {};
      for (uint32_t i = 0; i + distance < kDraws; ++i) {
        ++pairs[(sequence[i] & 0xf) << 4 | (sequence[i + distance] & 0xf)];
      }
      EXPECT_LT(std::abs(Unevenness(pairs)), 5) << distance;
    }
  }
}

TEST(RandomBits, OneChangedInputBitChangesHalfTheOutputBits) {
  for (int bit = 0; bit < 64; ++bit) {
    double changed[4] = {};
    constexpr int kPlaces = 2000;
    for (uint32_t place = 0; place < kPlaces; ++place) {
      const uint64_t flip = uint64_t{1} << bit;
      const uint32_t original = RandomBits(1, 2, 3, place).At(0);
      const auto count = [original](const RandomBits& other) {
        return std::popcount(original ^ other.At(0));
      };
      changed[0] += count(RandomBits(1 ^ flip, 2, 3, place));
      changed[1] += count(RandomBits(1, 2 ^ flip, 3, place));
      changed[2] += count(RandomBits(1, 2, 3 ^ static_cast<uint32_t>(flip), place));
      changed[3] += count(RandomBits(1, 2, 3, place ^ flip));
    }
    for (int input = 0; input < 4; ++input) {
      if (input == 2 && bit >= 32) continue;  // tensors are 32 bits
      EXPECT_NEAR(changed[input] / kPlaces, 16, 1.5)
          << "input " << input << " bit " << bit;
    }
  }
}

// Two tensors, or two steps, must not see the same numbers at a fixed distance.
TEST(RandomBits, SequencesOfDifferentTensorsAreNoShiftsOfEachOther) {
  std::unordered_set<uint64_t> pairs;
  for (uint32_t i = 0; i < 65536; ++i) {
    pairs.insert(uint64_t{RandomBits(1, 2, 3, 0).At(i)} << 32 |
                 RandomBits(1, 2, 3, 0).At(i + 1));
  }
  for (uint32_t i = 0; i < 65536; ++i) {
    EXPECT_FALSE(pairs.contains(uint64_t{RandomBits(1, 2, 4, 0).At(i)} << 32 |
                                RandomBits(1, 2, 4, 0).At(i + 1)));
  }
}

TEST(RandomBits, BelongToTheElementHoweverAStripIsCut) {
  for (const uint64_t element : {uint64_t{0}, uint64_t{65536}, uint64_t{5} << 32}) {
    for (uint32_t i = 0; i < 1000; ++i) {
      ASSERT_EQ(RandomBits(1, 2, 3, element).At(i),
                RandomBits(1, 2, 3, element + i).At(0));
    }
  }
}

// Published weights depend on these bits. A loop in Python computed the expected values.
TEST(RandomBits, NeverChange) {
  EXPECT_EQ(RandomBits(0, 0, 0, 0).At(0), 131524138u);
  EXPECT_EQ(RandomBits(1, 2, 3, 4).At(5), 508557400u);
  EXPECT_EQ(RandomBits(~uint64_t{0}, 1, 2, uint64_t{1} << 35).At(65535), 4154190287u);
}

}  // namespace
}  // namespace syncline
