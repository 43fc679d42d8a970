// What servers say of their jobs' progress: from engines, and as messages.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "proto/coordinator.pb.h"
#include "server/coordinator/coordinator.h"
#include "server/shard/shard.h"

namespace syncline {

// Adds one shard's figures to those of its server.
void AddProgress(const ShardProgress& shard, JobProgress& job);

void ProgressToProto(const std::vector<JobProgress>& jobs, v1::Heartbeat& beat);
// Of more members than there can be, none.
std::vector<JobProgress> ProgressFromProto(const v1::Heartbeat& beat);

}  // namespace syncline
