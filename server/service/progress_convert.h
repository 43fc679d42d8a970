// What heartbeats say: servers of their jobs' progress, workers of their compression.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "comm/base/step_phases.h"
#include "proto/coordinator.pb.h"
#include "server/coordinator/coordinator.h"
#include "server/links/record_link.h"
#include "server/shard/shard.h"

namespace syncline {

// Adds one shard's figures to those of its server.
void AddProgress(const ShardProgress& shard, JobProgress& job);

// Of engines that work side by side the longest counts.
void AddPhases(const ServerPhases& engine, ServerPhases& server);

// Adds what the records of one engine have come to: of all together, what is furthest, what
// every one has, and what all have sent.
void AddRecords(const RecordSender::Progress& engine, RecordSender::Progress& server);

void ProgressToProto(const std::vector<JobProgress>& jobs, v1::Heartbeat& beat);
// Of more members than there can be, none.
std::vector<JobProgress> ProgressFromProto(const v1::Heartbeat& beat);

v1::RecordProgress ToProto(const RecordProgress& records);

CompressionFigures FromProto(const v1::CompressionFigures& in);
v1::CompressionFigures ToProto(const CompressionFigures& figures);

}  // namespace syncline
