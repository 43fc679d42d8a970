// syncline advise JOB: what bounds a job, and what to change.
#pragma once

#include "CLI/CLI.hpp"
#include "cli/command.h"

namespace syncline {

void AddAdvise(CLI::App& app, Command* selected);

}  // namespace syncline
