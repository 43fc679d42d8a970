#include "server/checkpoint/load.h"

#include "comm/base/status.h"

namespace syncline {

absl::Status LoadBlocks(const CheckpointReader& reader, const CheckpointLayout& layout,
                        const std::vector<ShardBlock>& blocks, Shard& shard) {
  for (const ShardBlock& block : blocks) {
    SYNCLINE_ASSIGN_OR_RETURN(const ShardSnapshot part, reader.Read(block, layout));
    SYNCLINE_RETURN_IF_ERROR(shard.Load(part));
  }
  SYNCLINE_ASSIGN_OR_RETURN(const ShardSnapshot rest, reader.ReadRest(layout));
  SYNCLINE_RETURN_IF_ERROR(shard.Load(rest));
  return shard.CheckLoaded();
}

}  // namespace syncline
