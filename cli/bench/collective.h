// `syncline bench collective`: collective operations among processes of this host, with the
// columns of nccl-tests: size, time, algbw, busbw, wrong.
//
// busbw is algbw times what the operation must move for each byte of its size (nccl-tests
// doc/PERFORMANCE.md), and so comparable with the machine's copy bandwidth. Every size is
// checked while it is measured: `wrong` counts elements.
#pragma once

#include "CLI/App.hpp"
#include "cli/command.h"

namespace syncline {

void AddBenchCollective(CLI::App& bench, Command* selected);

}  // namespace syncline
