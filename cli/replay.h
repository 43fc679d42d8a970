// `syncline replay`: a job again from its journal, without its servers and workers.
//
//   syncline replay --journal /data/journal --job bert --out weights.safetensors
//   syncline replay --journal a --journal b --job bert --to 1200 --verify --out w.safetensors
//   syncline replay --journal /data/journal --job bert --checkpoint-out ckpt
//   syncline replay --journal /data/journal --job bert --run 9f03c1d2a4b5e677 --verify
#pragma once

#include "CLI/App.hpp"
#include "cli/command.h"

namespace syncline {

void AddReplay(CLI::App& app, Command* selected);

}  // namespace syncline
