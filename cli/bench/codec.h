// `syncline bench codec`: what a codec costs for each element, and what it saves.
//
// Gradients far larger than the caches are encoded tile by tile into frames, with the
// sender's memory (comm/compression/memory) as on a worker, and the frames are decoded into an
// FP32 accumulator as on a server; both are timed apart, one round after another, with
// copies of memory between the rounds. The sum that arrived is checked in the same run.
#pragma once

#include "CLI/App.hpp"
#include "cli/command.h"

namespace syncline {

void AddBenchCodec(CLI::App& bench, Command* selected);

}  // namespace syncline
