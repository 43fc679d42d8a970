// Whether servers have the memory that a job needs: checked before anything is taken, so
// that one job can neither end a server nor the jobs beside it.
//
// A server says with its hello what its jobs may take together. A job takes what
// PlanMemory says (server/shard/memory_plan.h), from its placement until it is dropped.
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

// What one server has for jobs.
struct ServerMemory {
  std::string name = {};
  uint32_t shards = 1;        // its engine threads
  uint64_t budget_bytes = 0;  // 0: not known, and not checked
  uint64_t placed_bytes = 0;  // of the jobs it has
};

using ServerMemories = std::map<uint32_t, ServerMemory>;  // by the servers' numbers

// Where the blocks of a job go, on servers of so many shards each.
struct JobPlacement {
  std::vector<uint32_t> shards = {};          // of each server, in their order
  std::vector<uint32_t> shard_of_block = {};  // shards counted over all servers
  std::vector<MemoryUse> server_use = {};     // what each takes
  std::vector<bool> serves = {};              // whether each has any block
};

// OK when `use` fits; otherwise ResourceExhausted with Failure::kJobRefused says how much is
// missing, what takes it, and what can be done.
absl::Status CheckMemory(const std::string& job, const MemoryUse& use,
                         const ServerMemory& server);

// Where the blocks of a valid job go on at least one server, each of so many shards.
// InvalidArgument when so many servers cannot have it.
absl::StatusOr<JobPlacement> PlaceJob(const JobSpec& spec,
                                      std::span<const uint32_t> shards);

// Fails as CheckMemory of the first server that has too little. REQUIRES: `servers` are
// those of the placement.
absl::Status CheckPlacement(const std::string& job, const JobPlacement& placement,
                            std::span<const ServerMemory> servers);

}  // namespace syncline
