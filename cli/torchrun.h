// The flags of torchrun that `syncline run` has for the sake of those who know them: what
// they mean here, and which have no effect. All others it has itself, under torchrun's
// names.
#pragma once

#include <string>
#include <vector>

#include "CLI/App.hpp"
#include "cli/launch_plan.h"

namespace syncline {

void AddTorchrunFlags(CLI::App& command, RunOptions& options);

// Puts what was given for torchrun's rendezvous in Syncline's terms. Returns what is to be
// said of it, in lines: nothing when all that was given has an effect.
//
// An endpoint is the coordinator's address, unless it names none (port 0), or is another
// backend's on one host: workers there need no meeting place but the coordinator that is
// started with them.
std::vector<std::string> UnderstandTorchrun(RunOptions& options);

}  // namespace syncline
