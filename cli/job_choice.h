// The JOB of `syncline status` and `diagnose`, in a status (comm/rpc/status_json.h).
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace syncline {

// `json`, of whose jobs only those of that name are left; all where it is empty. NotFound
// names those there are.
absl::StatusOr<std::string> StatusOfJob(const std::string& json, const std::string& job);

}  // namespace syncline
