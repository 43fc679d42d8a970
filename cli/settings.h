// Finds a flag's value in several sources. The first that has it wins: the command line;
// the environment (SYNCLINE_FAILURE_TIMEOUT for --failure-timeout, and for commands that
// start programs also torchrun's PET_NNODES for --nnodes); the YAML file of --config; the
// default.
//
//   # job.yaml
//   workers: 4
//   failure-timeout: 5s
//
// A key of the file is a flag's name without dashes. An unknown key is an error that
// suggests the nearest flag. An empty variable counts as unset.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "CLI/App.hpp"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace syncline {

// getenv, or a replacement in tests.
using Environment = std::function<const char*(const char*)>;

// Returns the name of the variable for --`flag`.
std::string VariableName(const std::string& flag);

// Returns the flags of `command` and of its parsed subcommands, except --help and
// --config.
std::vector<CLI::Option*> FlagsOf(CLI::App& command);

// Returns warnings about variables in `environment` (as in environ) that nearly match
// SYNCLINE_<FLAG> of a flag of `app`, or another variable of Syncline. Ignores those that
// Kubernetes sets for services (SYNCLINE_PORT_7070_TCP).
std::vector<std::string> MisspelledVariables(CLI::App& app,
                                             const char* const* environment);

// Returns the flag nearest to `name`, both without dashes, for "did you mean". Empty when
// none is near (comm/base/nearest.h).
std::string NearestFlag(absl::string_view name, const std::vector<CLI::Option*>& flags);

struct SettingSources {
  std::string config_file;  // empty: none
  Environment environment;
  // Prefixes of variables for flags, in order of precedence: "SYNCLINE_", "PET_".
  std::vector<std::string> prefixes = {"SYNCLINE_"};
};

// Sets each of `flags` that is not on the command line from `sources`. Errors are
// Failure::kUsage and name the source of the value.
absl::Status ApplySettings(const std::vector<CLI::Option*>& flags,
                           const SettingSources& sources);

}  // namespace syncline
