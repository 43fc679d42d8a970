#include "server/coordinator/placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace syncline {
namespace {

TEST(PlaceBlocks, BalancesOneHugeAndManySmallTensorsWithinFivePercent) {
  std::vector<uint64_t> elements(300, 2048);
  elements.insert(elements.begin() + 40, 100'000'000);
  const std::vector<BlockRange> blocks = CutIntoBlocks(elements);
  for (const uint32_t shards : {1u, 2u, 3u, 7u}) {
    const std::vector<uint32_t> shard_of_block = PlaceBlocks(blocks, shards);
    std::vector<double> loads(shards);
    double total = 0;
    for (size_t i = 0; i < blocks.size(); ++i) {
      loads.at(shard_of_block[i]) += blocks[i].elements;
      total += blocks[i].elements;
    }
    EXPECT_LE(*std::max_element(loads.begin(), loads.end()), 1.05 * total / shards)
        << shards;
    EXPECT_EQ(shard_of_block, PlaceBlocks(blocks, shards)) << "the same every time";
  }
}

TEST(PlaceBlocks, OfNothingIsNothing) { EXPECT_TRUE(PlaceBlocks({}, 3).empty()); }

}  // namespace
}  // namespace syncline
