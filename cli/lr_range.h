// `syncline lr-range`: a learning-rate range test. Runs a program as `syncline run` does
// while the job's learning rate sweeps from --first to --last, and shows how the loss
// that the workers report (Session::ReportLoss) depends on it.
#pragma once

#include "CLI/App.hpp"
#include "cli/command.h"

namespace syncline {

void AddLrRange(CLI::App& app, Command* selected);

}  // namespace syncline
