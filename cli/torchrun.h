// The flags of torchrun that `syncline run` accepts for compatibility: what they mean
// here, and which have no effect. Other flags of torchrun are flags of `syncline run`
// itself.
#pragma once

#include <string>
#include <vector>

#include "CLI/App.hpp"
#include "cli/launch_plan.h"

namespace syncline {

void AddTorchrunFlags(CLI::App& command, RunOptions& options);

// Translates the flags of torchrun's rendezvous to Syncline's options. Returns lines for
// the user about flags without effect; empty when there are none.
//
// The endpoint becomes the coordinator's address. Exceptions: an endpoint with port 0,
// and one of another backend on a single host. In these cases the workers only need the
// coordinator that the launcher starts.
std::vector<std::string> UnderstandTorchrun(RunOptions& options);

}  // namespace syncline
