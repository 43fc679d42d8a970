// `syncline run --answers` (docs/goals.md), with what the launcher knows besides.
//
// Thread safety: pure function.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "cli/launch_plan.h"

namespace syncline {

// The value for the workers: with the launcher's --min-workers, where it says nothing of how
// many have to stay. InvalidArgument (Failure::kUsage) when it is wrong, or the run, or what
// other nodes need of this one, would end with a worker that is excluded. REQUIRES: `plan`
// has its sizes and its services.
absl::StatusOr<std::string> AnswersFor(const RunOptions& options, const LaunchPlan& plan);

}  // namespace syncline
