// The command line of `syncline serve`.
#pragma once

#include "CLI/App.hpp"
#include "cli/serve_options.h"

namespace syncline {

// `flags` must outlive `serve`.
void AddServeFlags(CLI::App& serve, ServeFlags& flags);

}  // namespace syncline
