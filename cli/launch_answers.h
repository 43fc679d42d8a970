// Completes `syncline run --answers` (docs/goals.md) with what the launcher knows.
//
// Thread safety: pure function.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "cli/launch_plan.h"

namespace syncline {

// Returns the value for the workers. Adds the launcher's --min-workers if the flag does
// not say how many workers must stay. Fails with InvalidArgument (Failure::kUsage) when
// the value is wrong, or when excluding a worker would end the run or a service that
// other nodes need. REQUIRES: the sizes and services of `plan` are set.
absl::StatusOr<std::string> AnswersFor(const RunOptions& options, const LaunchPlan& plan);

}  // namespace syncline
