// What the coordinator passes to each of its jobs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "server/coordinator/coordinator.h"
#include "server/coordinator/growing_numbers.h"
#include "server/coordinator/outbox.h"

namespace syncline {

// A server as jobs see it.
struct JobServer {
  uint32_t server = 0;
  uint32_t incarnation = 0;
  ConnectionId connection = 0;
  std::string name;
  // Name of the server in whose process it runs: its own, except for a stand-in.
  std::string host = {};
  std::vector<std::string> shard_addresses;
  ServerMemory memory = {};
  std::vector<JournaledRun> journals = {};  // runs that it can restore
  absl::Duration attached_at = {};          // set for servers that are offered to jobs
  bool feeds_two_backups = false;           // ServerHello
  // The first epoch in which it has its place; 0: since the job began.
  uint64_t moved_in = 0;
};

// "server 3 (gpu7)"
inline std::string NameOf(const JobServer& server) {
  return absl::StrCat("server ", server.server, " (", server.name, ")");
}

// Counters that are stored and never decrease, also across coordinator restarts.
struct Counters {
  uint32_t next_job = 1;
  // Also numbers orders of stand-ins and generations of journals, so that none of these
  // is ever used twice.
  uint32_t next_incarnation = 1;
  GrowingNumbers epochs;  // by job name
};

// State of the coordinator that jobs share.
struct JobContext {
  const CoordinatorOptions& options;
  Counters& counters;
  Outbox& outbox;
};

}  // namespace syncline
