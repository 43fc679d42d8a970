// `syncline bench codec`: measures what a codec costs per element, and what it saves.
//
// Gradients far larger than the caches are encoded tile by tile into frames, with the
// sender's memory (comm/compression/memory), as on a worker. The frames are then decoded
// into an FP32 accumulator, as on a server. Both are timed separately, round by round,
// with copies of memory between the rounds. The accumulated sum is checked in the same
// run.
#pragma once

#include "CLI/App.hpp"
#include "cli/command.h"

namespace syncline {

void AddBenchCodec(CLI::App& bench, Command* selected);

}  // namespace syncline
