// Whether this program makes the steps of a journal by the rule of the one that wrote it.
//
// Thread safety: a pure function.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/checkpoint/part.h"
#include "server/journal/segment.h"
#include "server/shard/shard.h"

namespace syncline {

// FailedPrecondition, with `path`, where its format stands for another rule
// (kJournalFormat), and that matters for one of the shard's blocks.
absl::Status CheckRule(const SegmentHead& head, const std::string& path,
                       const CheckpointLayout& layout,
                       const std::vector<ShardBlock>& blocks);

}  // namespace syncline
