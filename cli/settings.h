// Where a flag's value comes from, the first that has one: the command line, the
// environment (SYNCLINE_FAILURE_TIMEOUT for --failure-timeout; of what starts programs,
// torchrun's PET_NNODES for --nnodes after it), the YAML file of --config, the default.
//
//   # job.yaml
//   workers: 4
//   failure-timeout: 5s
//
// A key of the file is a flag's name without dashes; one that is no flag of the
// subcommand is an error that names the nearest flag. A variable set to nothing counts as
// not set.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "CLI/App.hpp"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace syncline {

// getenv, or a test's own.
using Environment = std::function<const char*(const char*)>;

// The variable that stands for --`flag`.
std::string VariableName(const std::string& flag);

// The flags of `command` and of its parsed subcommands, without --help and --config.
std::vector<CLI::Option*> FlagsOf(CLI::App& command);

// Warnings about variables of `environment` (as of environ) that are nearly, but not quite
// SYNCLINE_<FLAG> of a flag of `app` or one that Syncline reads elsewhere. Those that
// Kubernetes sets for services (SYNCLINE_PORT_7070_TCP) are none.
std::vector<std::string> MisspelledVariables(CLI::App& app,
                                             const char* const* environment);

// The nearest of `flags` to `name`, both without dashes, for "did you mean"; empty when
// none is near (comm/base/nearest.h).
std::string NearestFlag(absl::string_view name, const std::vector<CLI::Option*>& flags);

struct SettingSources {
  std::string config_file;  // none when empty
  Environment environment;
  // Of the variables that stand for a flag, first before second: "SYNCLINE_", "PET_".
  std::vector<std::string> prefixes = {"SYNCLINE_"};
};

// Gives each of `flags` that the command line did not set its value from `sources`. Errors
// are Failure::kUsage and name the source of the value.
absl::Status ApplySettings(const std::vector<CLI::Option*>& flags,
                           const SettingSources& sources);

}  // namespace syncline
