#include "comm/base/tiling.h"

#include <algorithm>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(Tiling, AModelWithoutElementsHasNoBlock) {
  EXPECT_THAT(CutIntoBlocks({}), IsEmpty());
  const uint64_t empty[] = {0, 0};
  EXPECT_THAT(CutIntoBlocks(empty), IsEmpty());
}

TEST(Tiling, CutsEachTensorByItselfAndSkipsEmptyOnes) {
  const uint64_t elements[] = {10, 0, 2 * kTileElements, 2 * kTileElements + 1};
  EXPECT_THAT(CutIntoBlocks(elements),
              ElementsAre(BlockRange{0, 0, 10}, BlockRange{2, 0, 2 * kTileElements},
                          BlockRange{3, 0, 2 * kTileElements},
                          BlockRange{3, 2 * kTileElements, 1}));
}

TEST(Tiling, BlocksOfAModelGrowWithItUpToTheirLimit) {
  const auto longest = [](std::vector<uint64_t> elements) {
    uint32_t most = 0;
    for (const BlockRange& block : CutIntoBlocks(elements)) {
      most = std::max(most, block.elements);
    }
    return most / kTileElements;
  };
  const uint64_t tile = kTileElements;
  EXPECT_EQ(longest({191 * tile}), 2u);
  EXPECT_EQ(longest({96 * tile, 96 * tile}), 3u);
  EXPECT_EQ(longest({1023 * tile}), 15u);
  EXPECT_EQ(longest({1024 * tile}), kTilesPerBlock);
  EXPECT_EQ(longest({5000 * tile}), kTilesPerBlock);
}

TEST(Tiling, BlocksCoverEveryElementOnceAndStartOnTileBorders) {
  const uint64_t elements[] = {1,         65535,     65536,      65537,
                               5'000'000, 1'048'575, 20'000'000, 3'145'728};
  std::vector<uint64_t> next(std::size(elements), 0);
  uint32_t last_tensor = 0;
  for (const BlockRange& block : CutIntoBlocks(elements)) {
    EXPECT_GE(block.tensor, last_tensor);
    last_tensor = block.tensor;
    EXPECT_EQ(block.first_element, next[block.tensor]);
    EXPECT_EQ(block.first_element % kTileElements, 0u);
    EXPECT_GT(block.elements, 0u);
    EXPECT_LE(block.elements, kBlockElements);
    next[block.tensor] += block.elements;
  }
  for (size_t i = 0; i < next.size(); ++i) EXPECT_EQ(next[i], elements[i]) << i;
}

TEST(Tiling, TilesOfARunAddUpToTheRun) {
  EXPECT_EQ(TilesOf(0), 0u);
  for (uint64_t elements : {1u, 65535u, 65536u, 65537u, 131072u, 1048576u}) {
    uint64_t sum = 0;
    for (uint32_t tile = 0; tile < TilesOf(elements); ++tile) {
      const uint32_t count = TileElements(elements, tile);
      EXPECT_GT(count, 0u);
      EXPECT_LE(count, kTileElements);
      sum += count;
    }
    EXPECT_EQ(sum, elements);
  }
}

}  // namespace
}  // namespace syncline
