#include "server/coordinator/placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <set>
#include <vector>

namespace syncline {
namespace {

constexpr auto kNoneWhole = [](uint32_t) { return false; };

TEST(PlaceBlocks, KeepsATensorTogetherThatMustBeWhole) {
  const std::vector<BlockRange> blocks =
      CutIntoBlocks(std::vector<uint64_t>{100, 5 * kBlockElements, 5 * kBlockElements});
  const auto shard_of_block =
      PlaceBlocks(blocks, 4, [](uint32_t tensor) { return tensor == 1; });
  std::array<std::set<uint32_t>, 3> shards_of_tensor;
  for (size_t block = 0; block < blocks.size(); ++block) {
    shards_of_tensor.at(blocks[block].tensor).insert(shard_of_block[block]);
  }
  EXPECT_EQ(shards_of_tensor[1].size(), 1u);
  EXPECT_GE(shards_of_tensor[2].size(), 3u) << "the other one is spread";
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
