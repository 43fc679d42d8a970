// The members that must be told to trace steps of a job.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "server/coordinator/declared_job.h"

namespace syncline {

struct TraceTarget {
  enum class Role { kServer, kWorker } role = Role::kServer;
  uint32_t number = 0;  // number of the server, or rank of the worker
  uint32_t incarnation = 0;
  std::string name = {};
  uint64_t connection = 0;
};

struct TraceTargets {
  uint32_t job = 0;
  std::vector<TraceTarget> members = {};  // servers, then workers; each by number
  std::shared_ptr<const DeclaredJob> declared = {};
};

}  // namespace syncline
