// Checks that servers have the memory that a job needs, before any is taken. So one job
// can neither end a server nor the other jobs on it.
//
// A server's hello says how much memory all of its jobs together may take. A job takes
// what PlanMemory says (server/shard/memory_plan.h), from its placement until it is
// dropped.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/coordinator/job_spec.h"
#include "server/shard/memory_plan.h"

namespace syncline {

// Memory of one server, for jobs.
struct ServerMemory {
  std::string name = {};
  uint32_t shards = 1;        // number of its engine threads
  uint64_t budget_bytes = 0;  // 0: unknown, and not checked
  uint64_t placed_bytes = 0;  // planned for the jobs that it has
};

using ServerMemories = std::map<uint32_t, ServerMemory>;  // by server number

// The servers and shards that hold the blocks of a job. Vectors without a remark are by
// server, in the order of the servers.
struct JobPlacement {
  std::vector<uint32_t> shards = {};  // number of shards of each server
  std::vector<uint32_t> shard_of_block =
      {};  // by block; shards are numbered across all servers
  std::vector<MemoryUse> server_use = {};  // memory that the job takes on each server
  std::vector<bool> serves = {};           // whether the server has any block
};

// Returns OK if `use` fits. Otherwise fails with ResourceExhausted and
// Failure::kJobRefused. The message says how much is needed for what, how much is free,
// and what can be done.
absl::Status CheckMemory(const std::string& job, const MemoryUse& use,
                         const ServerMemory& server);

// Places the blocks of a valid job on servers with these numbers of shards. Fails with
// InvalidArgument if the job cannot be placed on them. REQUIRES: at least one server.
absl::StatusOr<JobPlacement> PlaceJob(const JobSpec& spec,
                                      std::span<const uint32_t> shards);

// Fails as CheckMemory does, for the first server that has too little memory. REQUIRES:
// `servers` are those of the placement.
absl::Status CheckPlacement(const std::string& job, const JobPlacement& placement,
                            std::span<const ServerMemory> servers);

}  // namespace syncline
