// `syncline plan`: computes what a job would need, before anything runs.
//
//   syncline plan memory job.yaml --servers 4 --threads 2
//   syncline plan memory --params 7e9 --optimizer adamw --state int8
#pragma once

#include <string>
#include <vector>

#include "CLI/App.hpp"
#include "absl/status/statusor.h"
#include "cli/command.h"
#include "server/coordinator/job_spec.h"
#include "server/shard/memory_plan.h"

namespace syncline {

struct ClusterSize {
  uint32_t servers = 1;
  uint32_t threads = 1;  // engine threads of each server, which are its shards
};

// Memory of a job on its servers, placed as the coordinator places it.
struct PlannedMemory {
  JobSpec spec = {};
  ClusterSize cluster = {};
  MemoryPlan plan = {};

  MemoryUse Server(uint32_t server) const;  // all its shards together
};

// Fails with InvalidArgument like ValidateJob, or when the cluster size is out of range.
absl::StatusOr<PlannedMemory> PlanJobMemory(const JobSpec& spec,
                                            const ClusterSize& cluster);

// Returns text for people: the largest tensors, the servers, the job.
std::string MemoryAsTable(const PlannedMemory& memory);
// Returns all tensors, servers and shards, in bytes.
std::string MemoryAsJson(const PlannedMemory& memory);

void AddPlan(CLI::App& app, Command* selected);

}  // namespace syncline
