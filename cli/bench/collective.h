// `syncline bench collective`: measures collective operations among processes of this
// host. The columns are those of nccl-tests: size, time, algbw, busbw, wrong.
//
// busbw is algbw times the bytes that the operation must move per byte of its size
// (nccl-tests doc/PERFORMANCE.md), so it is comparable with the machine's copy bandwidth.
// Results of every size are checked during the measurement; `wrong` is the number of
// wrong elements.
#pragma once

#include "CLI/App.hpp"
#include "cli/command.h"

namespace syncline {

void AddBenchCollective(CLI::App& bench, Command* selected);

}  // namespace syncline
