// Recovers the steps that an earlier run of a job left in --journal-dir, and that no
// checkpoint has. A new run would silently ignore them.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "cli/launch_plan.h"

namespace syncline {

// Call before the job begins. If the last run has such steps, makes a checkpoint of the
// last one in --checkpoint-dir, from which the job continues, and tells `say`. Does
// nothing with --resume never or a checkpoint's name, and in mode asp, whose journal has
// no steps.
//
// Fails with InvalidArgument (Failure::kUsage) without a --checkpoint-dir if the run is
// unfinished. Fails with Failure::kStateUnusable when the journal is still being written,
// or cannot be replayed. Both errors say what to do.
absl::Status GoOnFromJournal(const RunOptions& options,
                             const std::function<void(const std::string&)>& say);

// Call when the job is finished: without a --checkpoint-dir the next run starts from
// scratch.
absl::Status SettleJournal(const RunOptions& options);

}  // namespace syncline
