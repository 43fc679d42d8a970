// The checks of `syncline doctor` about this machine. A check has a finding and, unless
// the result is good, a fix. Measuring and judging are separate, so that judging can be
// tested.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "comm/base/machine.h"

namespace syncline {

struct Check {
  enum Result {
    kNone,  // missing, and not needed
    kOk,
    kWarn,  // works, but slower or with less than possible
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
// `limit_bytes`: RLIMIT_MEMLOCK, which matters only with RDMA.
Check JudgeMemlock(uint64_t limit_bytes, const std::vector<std::string>& rdma_devices);
// `lanes`: those between two endpoints on this host, as Endpoint::Describe returns them.
Check JudgeUcx(const std::string& version, const std::string& transports,
               const std::string& lanes);

// The transports that `serve --data-plane auto` uses within this host (`near`) and to
// other hosts (`far`), as Endpoint::Describe returns them, or the error.
struct DataPlanesFound {
  absl::StatusOr<std::string> near = "";
  absl::StatusOr<std::string> far = "";
};
Check JudgeDataPlane(const DataPlanesFound& found);

// `setting`: SYNCLINE_GROUP_COSTS, by which groups of collective operations choose their
// algorithms. Reads the file that it names.
Check JudgeCollectives(const std::string& setting);

// Runs all checks, in the order of the table. Takes about a second.
std::vector<Check> RunChecks();

}  // namespace syncline
