// How a job keeps to its goals, as `syncline status` says it (docs/goals.md).
//
// Thread safety: pure function.
#pragma once

#include <string>

#include "nlohmann/json.hpp"

namespace syncline {

// A line for each goal of the job, an object of the status; nothing without any.
std::string GoalLines(const nlohmann::json& job);

}  // namespace syncline
