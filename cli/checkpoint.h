// `syncline checkpoint`: makes, lists, checks, exports and deletes what jobs have saved.
//
//   syncline checkpoint create bert                          # asks a running coordinator
//   syncline checkpoint list --checkpoint-dir ckpt           # all others look at the files
//   syncline checkpoint verify bert latest --checkpoint-dir ckpt
//   syncline checkpoint export bert latest --checkpoint-dir ckpt --out weights.safetensors
#pragma once

#include "CLI/App.hpp"
#include "cli/command.h"

namespace syncline {

void AddCheckpoint(CLI::App& app, Command* selected);

}  // namespace syncline
