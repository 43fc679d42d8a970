// A shard from a checkpoint.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "server/checkpoint/reader.h"
#include "server/shard/shard.h"

namespace syncline {

// All of the shard's blocks, one by one, so that no more than one is in memory twice. Fails
// as CheckpointReader::Read and Shard::Load.
absl::Status LoadBlocks(const CheckpointReader& reader, const CheckpointLayout& layout,
                        const std::vector<ShardBlock>& blocks, Shard& shard);

}  // namespace syncline
