// Loads a shard from a checkpoint.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "server/checkpoint/reader.h"
#include "server/shard/shard.h"

namespace syncline {

// Loads all blocks of the shard, one at a time, so that at most one block is in memory
// twice. Fails like CheckpointReader::Read and Shard::Load.
absl::Status LoadBlocks(const CheckpointReader& reader, const CheckpointLayout& layout,
                        const std::vector<ShardBlock>& blocks, Shard& shard);

}  // namespace syncline
