// What jobs are told by the coordinator that owns them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/coordinator/coordinator.h"
#include "server/coordinator/growing_numbers.h"

namespace syncline {

// A server as jobs see it.
struct JobServer {
  uint32_t server = 0;
  uint32_t incarnation = 0;
  ConnectionId connection = 0;
  std::string name;
  std::string host = {};  // in whose process it runs: itself, but for a stand-in
  std::vector<std::string> shard_addresses;
  ServerMemory memory = {};
  std::vector<JournaledRun> journals = {};  // that it could take up again
  // The epoch from which on workers find it there; 0: it began with the job.
  uint64_t moved_in = 0;
};

// "server 3 (gpu7)"
inline std::string NameOf(const JobServer& server) {
  return absl::StrCat("server ", server.server, " (", server.name, ")");
}

// Counters that survive the coordinator: they only grow.
struct Counters {
  uint32_t next_job = 1;
  uint32_t next_incarnation = 1;
  GrowingNumbers epochs;  // by job name
};

// What outlives all jobs.
struct JobContext {
  const CoordinatorOptions& options;
  Counters& counters;
};

}  // namespace syncline
