// What the end of a child of `syncline run` says, and when it is started again.
#pragma once

#include <string>

#include "absl/time/time.h"
#include "cli/process.h"
#include "comm/base/failure.h"

namespace syncline {

// Exit codes of our own services keep their meaning.
Failure FailureOfExit(int wait_status);

// The last thing that a process had to say, in its own words if it failed as ours do:
// ": disk is full", or nothing.
std::string LastWords(const ProcessEvent& event);

// None before the first restart, then `unit`, twice and four times that, and so on, a
// minute at most.
absl::Duration PauseBefore(int restart, absl::Duration unit);

// "in 2s ", or nothing.
std::string DescribePause(absl::Duration pause);

}  // namespace syncline
