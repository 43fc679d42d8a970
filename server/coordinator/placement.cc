#include "server/coordinator/placement.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <utility>

#include "comm/base/check.h"

namespace syncline {

namespace {

// Consecutive blocks that stay together. Blocks are in tensor order, so those of a whole
// tensor are neighbours.
struct Unit {
  uint32_t first_block = 0;
  uint32_t blocks = 0;
  uint64_t elements = 0;
};

}  // namespace

std::vector<uint32_t> PlaceBlocks(std::span<const BlockRange> blocks, uint32_t shards,
                                  const std::function<bool(uint32_t tensor)>& is_whole) {
  SYNCLINE_CHECK(shards >= 1);
  std::vector<Unit> units;
  for (uint32_t block = 0; block < blocks.size(); ++block) {
    const uint32_t tensor = blocks[block].tensor;
    const bool begins =
        block == 0 || blocks[block - 1].tensor != tensor || !is_whole(tensor);
    if (begins) units.push_back({.first_block = block});
    ++units.back().blocks;
    units.back().elements += blocks[block].elements;
  }
  std::ranges::stable_sort(units, std::greater<>(), &Unit::elements);
  using Load = std::pair<uint64_t, uint32_t>;  // elements, shard
  std::priority_queue<Load, std::vector<Load>, std::greater<>> least_loaded;
  for (uint32_t shard = 0; shard < shards; ++shard) least_loaded.push({0, shard});
  std::vector<uint32_t> shard_of_block(blocks.size());
  for (const Unit& unit : units) {
    const auto [elements, shard] = least_loaded.top();
    least_loaded.pop();
    std::fill_n(shard_of_block.begin() + unit.first_block, unit.blocks, shard);
    least_loaded.push({elements + unit.elements, shard});
  }
  return shard_of_block;
}

}  // namespace syncline
