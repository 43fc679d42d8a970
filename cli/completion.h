// `syncline completion bash|zsh|fish`: a script for the shell, made from the commands and
// flags of this binary.
//
//   source <(syncline completion bash)
#pragma once

#include <string>

#include "CLI/App.hpp"
#include "absl/status/statusor.h"
#include "cli/command.h"

namespace syncline {

// InvalidArgument (Failure::kUsage) for another shell.
absl::StatusOr<std::string> CompletionScript(const CLI::App& app,
                                             const std::string& shell);

void AddCompletion(CLI::App& app, Command* selected);

}  // namespace syncline
