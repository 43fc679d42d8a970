// Changes of the mode of a running job. Only the staleness of mode ssp can change
// (docs/modes.md), which is how far workers may be ahead. Staleness 0 gives the same bits
// as bsp.
//
// A job that was declared with mode bsp cannot change to a staleness above 0. Its program
// may rely on no worker being ahead, as LocalSGD, wrap and hook do. A program that
// declares mode ssp does not rely on it, whatever its staleness is.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "comm/base/options.h"
#include "server/coordinator/job_spec.h"
#include "server/shard/memory_plan.h"

namespace syncline {

// Returns the mode of the job after the change; bsp is written as ssp with staleness 0.
// Fails with InvalidArgument, which says what is allowed, or which setting of the job
// conflicts with the mode. `spec` is the present job, with its tensors.
absl::StatusOr<NamedOptions> ChangedMode(const JobSpec& spec, const NamedOptions& wanted);

// A change from the staleness that memory was planned for to another one. bsp counts as
// 0.
struct StalenessChange {
  uint64_t planned = 0;
  uint64_t staleness = 0;
};
// Returns the memory use of a server after the change, if `use` was planned before it.
MemoryUse UseAfter(MemoryUse use, const StalenessChange& change);

}  // namespace syncline
