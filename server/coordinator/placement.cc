#include "server/coordinator/placement.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>
#include <utility>

#include "comm/base/check.h"

namespace syncline {

std::vector<uint32_t> PlaceBlocks(std::span<const BlockRange> blocks, uint32_t shards) {
  SYNCLINE_CHECK(shards >= 1);
  std::vector<uint32_t> by_size(blocks.size());
  std::iota(by_size.begin(), by_size.end(), 0);
  std::stable_sort(by_size.begin(), by_size.end(), [&](uint32_t a, uint32_t b) {
    return blocks[a].elements > blocks[b].elements;
  });
  using Load = std::pair<uint64_t, uint32_t>;  // elements, shard
  std::priority_queue<Load, std::vector<Load>, std::greater<>> least_loaded;
  for (uint32_t shard = 0; shard < shards; ++shard) least_loaded.push({0, shard});
  std::vector<uint32_t> shard_of_block(blocks.size());
  for (const uint32_t block : by_size) {
    const auto [elements, shard] = least_loaded.top();
    least_loaded.pop();
    shard_of_block[block] = shard;
    least_loaded.push({elements + blocks[block].elements, shard});
  }
  return shard_of_block;
}

}  // namespace syncline
