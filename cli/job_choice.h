// Selects the JOB of `syncline status` and `diagnose` in a status
// (comm/rpc/status_json.h).
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace syncline {

// Returns `json` with only the jobs of that name; with all jobs if `job` is empty.
// NotFound lists the known names, or says that the job is one of `starting`.
absl::StatusOr<std::string> StatusOfJob(const std::string& json, const std::string& job,
                                        const std::vector<std::string>& starting = {});

// Returns the message for the case that there is no job. `starting`: jobs that runs on
// this host are starting.
std::string NoJobs(const std::vector<std::string>& starting);

}  // namespace syncline
