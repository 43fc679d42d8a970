// The JOB of `syncline status` and `diagnose`, in a status (comm/rpc/status_json.h).
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace syncline {

// `json`, of whose jobs only those of that name are left; all where it is empty. NotFound
// names those there are, or says that it is one of `starting`.
absl::StatusOr<std::string> StatusOfJob(const std::string& json, const std::string& job,
                                        const std::vector<std::string>& starting = {});

// What is said where there is no job: of those that runs on this host are starting.
std::string NoJobs(const std::vector<std::string>& starting);

}  // namespace syncline
