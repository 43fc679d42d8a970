// What `syncline doctor` finds out about this machine. A check has a finding and, unless
// all is well, the fix. The judging is apart from the looking, so that it can be tested.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "comm/base/machine.h"

namespace syncline {

struct Check {
  enum Result {
    kNone,  // not there, and not needed
    kOk,
    kWarn,  // works, but slower or less than it could
    kFail,  // Syncline will not work here
  };
  std::string name;
  Result result = kOk;
  std::string finding;
  std::string fix;  // empty when kOk or kNone
};

const char* ResultName(Check::Result result);

Check JudgeCpu(const MachineInfo& machine);
Check JudgeSharedMemory(uint64_t total_bytes, uint64_t free_bytes);
// `limit_bytes` as of RLIMIT_MEMLOCK; it only matters where there is RDMA.
Check JudgeMemlock(uint64_t limit_bytes, const std::vector<std::string>& rdma_devices);
// The lanes of an endpoint between two transports of this host, as Endpoint::Describe
// says.
Check JudgeUcx(const std::string& version, const std::string& transports,
               const std::string& lanes);

// What `serve --data-plane auto` uses here: inside this host, as Endpoint::Describe says,
// and to other hosts, where an error says what is wrong.
struct DataPlanesFound {
  absl::StatusOr<std::string> near = "";
  absl::StatusOr<std::string> far = "";
};
Check JudgeDataPlane(const DataPlanesFound& found);

// All checks, in the order of the table. Takes about a second.
std::vector<Check> RunChecks();

}  // namespace syncline
