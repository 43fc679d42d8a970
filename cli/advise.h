// `syncline advise JOB`: says what limits a job's speed, and what to change.
#pragma once

#include "CLI/CLI.hpp"
#include "cli/command.h"

namespace syncline {

void AddAdvise(CLI::App& app, Command* selected);

}  // namespace syncline
