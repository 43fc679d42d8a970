// Places the blocks of a job on shards: a pure function of the blocks' sizes.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "comm/base/tiling.h"

namespace syncline {

// Returns the shard of each block, balanced by elements. The largest unit goes first,
// always to the shard with the fewest elements. With this rule (Graham's longest
// processing time) the fullest shard exceeds the mean by less than one unit. A unit is a
// block, or all blocks of a tensor that `is_whole` says must stay together. Ties go to
// the lower number, so every run gives the same result. REQUIRES: shards >= 1.
std::vector<uint32_t> PlaceBlocks(std::span<const BlockRange> blocks, uint32_t shards,
                                  const std::function<bool(uint32_t tensor)>& is_whole);

}  // namespace syncline
