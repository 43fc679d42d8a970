// `syncline update`: changes the options of a running job.
//
//   syncline update resnet --option lr=1e-4 --schedule cosine
//     --schedule-option total_steps=1000
//   syncline update resnet --mode ssp:4
//   syncline update resnet --goals 'step_p95_ms<=150' --answers exclude_straggler
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "CLI/App.hpp"
#include "absl/status/statusor.h"
#include "cli/command.h"
#include "comm/base/options.h"
#include "comm/rpc/tls.h"

namespace syncline {

struct JobChange {
  std::string job = {};
  OptionValues optimizer = {};  // new values; other options stay
  std::optional<NamedOptions> schedule = std::nullopt;
  std::optional<NamedOptions> mode = std::nullopt;
  std::optional<std::string> goals = std::nullopt;
  std::optional<std::string> answers = std::nullopt;
};

struct JobChanged {
  uint64_t epoch = 0;  // the first step with the new values is of this epoch
  std::vector<std::string> changes = {};  // "lr from 0.1 to 0.01"; empty: none
};

// Changes all options or, on an error, none. Returns the coordinator's error, or
// Failure::kUnreachable when it does not answer.
absl::StatusOr<JobChanged> UpdateRunningJob(const std::string& coordinator,
                                            const TlsOptions& tls,
                                            const JobChange& change);

void AddUpdate(CLI::App& app, Command* selected);

}  // namespace syncline
