// How a job keeps to its goals, and what is done about that by itself, as `syncline status` says it
// (docs/goals.md).
//
// Thread safety: pure function.
#pragma once

#include <string>

#include "nlohmann/json.hpp"

namespace syncline {

// A line for each goal of the job, an object of the status, and two for its answers; nothing
// without any.
std::string GoalLines(const nlohmann::json& job);

// The same in one line, for `syncline top`: "goals: step_p95_ms<=150 missed, 163 now, budget
// spent". Empty without any.
struct GoalsInShort {
  std::string line = {};
  bool is_any_missed = false;  // of late
};
GoalsInShort ShortGoalLine(const nlohmann::json& job);

}  // namespace syncline
