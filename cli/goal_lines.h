// Formats how a job meets its goals, and the automatic answers, for `syncline status`
// (docs/goals.md).
//
// Thread safety: pure function.
#pragma once

#include <string>

#include "nlohmann/json.hpp"

namespace syncline {

// Returns a line for each goal of `job`, a job object of the status, and two lines for
// its answers. Empty without goals.
std::string GoalLines(const nlohmann::json& job);

// Returns one line for `syncline top`: "goals: step_p95_ms<=150 missed, 163 now, budget
// spent". Empty without goals.
struct GoalsInShort {
  std::string line = {};
  bool is_any_missed = false;  // recently
};
GoalsInShort ShortGoalLine(const nlohmann::json& job);

}  // namespace syncline
