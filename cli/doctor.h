// `syncline doctor`: says whether Syncline will work on this machine, and how to fix what
// does not (cli/checks.h). Exit code 1 when a check fails; warnings do not count.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "CLI/App.hpp"
#include "cli/checks.h"
#include "cli/command.h"

namespace syncline {

// Lines have at most `columns` characters, unless a word is longer. 0: no limit.
std::string ChecksAsTable(const std::vector<Check>& checks, size_t columns = 0);
std::string ChecksAsJson(const std::vector<Check>& checks);

void AddDoctor(CLI::App& app, Command* selected);

}  // namespace syncline
