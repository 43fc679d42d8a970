// Which shard owns which block: a pure function of the blocks' sizes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/base/tiling.h"

namespace syncline {

// The shard of each block, balanced by elements: the largest block goes first, always to
// the shard that has least (Graham's longest-processing-time rule: the fullest shard
// exceeds the mean by less than one block). Ties go to the lower number, so every run
// gives the same result. REQUIRES: shards >= 1.
std::vector<uint32_t> PlaceBlocks(std::span<const BlockRange> blocks, uint32_t shards);

}  // namespace syncline
