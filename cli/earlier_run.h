// What an earlier run of a job left in --journal-dir: steps that no checkpoint has.
// Beginning again beside them would leave them behind without a word.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "cli/launch_plan.h"

namespace syncline {

// Before the job begins: where its last run has such steps, makes a checkpoint of the last
// one in --checkpoint-dir, from which the job goes on; `say` is told. Nothing with --resume
// never, with the name of a checkpoint, and in mode asp, whose journal has no step.
//
// InvalidArgument (Failure::kUsage) without a --checkpoint-dir where the run did not come
// to its end; Failure::kStateUnusable when it is still being written, or cannot be played.
// Both say what to do.
absl::Status GoOnFromJournal(const RunOptions& options,
                             const std::function<void(const std::string&)>& say);

// The job came to its end: without a --checkpoint-dir the next run begins anew.
absl::Status SettleJournal(const RunOptions& options);

}  // namespace syncline
