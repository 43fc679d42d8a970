// To which mode a running job may go, and why not to others. What changes is how far workers
// of mode ssp may be ahead (docs/modes.md); 0 is bsp, bit for bit.
//
// A program that declared mode bsp may count on nobody running ahead, as LocalSGD, wrap and
// hook do: one that declared mode ssp does not, whatever its staleness is.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "comm/base/options.h"
#include "server/coordinator/job_spec.h"
#include "server/shard/memory_plan.h"

namespace syncline {

// The mode of the job from now on; bsp is written as staleness 0. InvalidArgument says what
// is allowed, or what of the job the mode does not go with. `spec` is the job as it is now,
// with its tensors.
absl::StatusOr<NamedOptions> ChangedMode(const JobSpec& spec, const NamedOptions& wanted);

// What a server takes of which `use` was planned for a job of mode ssp, or bsp, with that
// staleness, once workers may be `staleness` steps ahead.
struct StalenessChange {
  uint64_t planned = 0;
  uint64_t staleness = 0;
};
MemoryUse UseAfter(MemoryUse use, const StalenessChange& change);

}  // namespace syncline
