// `syncline diagnose`: says which members of a cluster are slow or unreachable, and by
// which link.
#pragma once

#include "CLI/CLI.hpp"
#include "cli/command.h"

namespace syncline {

void AddDiagnose(CLI::App& app, Command* selected);

}  // namespace syncline
