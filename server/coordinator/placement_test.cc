#include "server/coordinator/placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace syncline {
namespace {

constexpr auto kNoneWhole = [](uint32_t) { return false; };

TEST(PlaceBlocks, KeepsATensorTogetherThatMustBeWhole) {
  const std::vector<BlockRange> blocks =
      CutIntoBlocks(std::vector<uint64_t>{100, 5 * kBlockElements, 5 * kBlockElements});
  const auto shard_of_block =
      PlaceBlocks(blocks, 4, [](uint32_t tensor) { return tensor == 1; });
  for (size_t block = 2; block <= 5; ++block) {
    EXPECT_EQ(shard_of_block[block], shard_of_block[1]) << block;
  }
  EXPECT_NE(shard_of_block[6], shard_of_block[7]) << "the other one is spread";
}

TEST(PlaceBlocks, BalancesOneHugeAndManySmallTensorsWithinFivePercent) {
  std::vector<uint64_t> elements(300, 2048);
  elements.insert(elements.begin() + 40, 100'000'000);
  const std::vector<BlockRange> blocks = CutIntoBlocks(elements);
  for (const uint32_t shards : {1u, 2u, 3u, 7u}) {
    const std::vector<uint32_t> shard_of_block = PlaceBlocks(blocks, shards, kNoneWhole);
    std::vector<double> loads(shards);
    double total = 0;
    for (size_t i = 0; i < blocks.size(); ++i) {
      loads.at(shard_of_block[i]) += blocks[i].elements;
      total += blocks[i].elements;
    }
    EXPECT_LE(*std::max_element(loads.begin(), loads.end()), 1.05 * total / shards)
        << shards;
    EXPECT_EQ(shard_of_block, PlaceBlocks(blocks, shards, kNoneWhole))
        << "the same every time";
  }
}

TEST(PlaceBlocks, OfNothingIsNothing) {
  EXPECT_TRUE(PlaceBlocks({}, 3, kNoneWhole).empty());
}

}  // namespace
}  // namespace syncline
