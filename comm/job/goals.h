// The goals of a job (docs/goals.md), as users specify them:
//
//   samples_per_s>=2000,step_p95_ms<=150,participation>=0.9,wire_mb_per_step<=40,budget=0.01
//
// `budget` is the share of time in which a goal may be missed. Goals do not affect
// training.
//
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace syncline {

enum class GoalKind : uint8_t {
  kSamplesPerSecond,  // sum over all workers, as they report it with their gradients
  kStepP95,           // milliseconds between two steps, on any worker
  kParticipation,     // workers that contributed to a step, over the declared number
  kWireMbPerStep,     // MB that a worker sends and receives per step; mean of all workers
};
inline constexpr size_t kGoalKinds = 4;
inline constexpr double kDefaultGoalBudget = 0.01;
inline constexpr size_t kMaxGoalsBytes = 256;

// Returns names such as "samples_per_s", used in specifications, JSON and metrics.
std::string_view GoalName(GoalKind kind);

struct Goal {
  GoalKind kind = GoalKind::kSamplesPerSecond;
  double limit = 0;

  bool IsAtLeast() const {
    return kind == GoalKind::kSamplesPerSecond || kind == GoalKind::kParticipation;
  }
  bool IsMetBy(double value) const {
    return IsAtLeast() ? value >= limit : value <= limit;
  }
  std::string Written() const;  // "step_p95_ms<=150"
  bool operator==(const Goal&) const = default;
};

struct GoalSpec {
  std::vector<Goal> goals = {};  // each kind once, in the order of kinds
  double budget = kDefaultGoalBudget;
};

// Returns the same text for all specifications with the same meaning: "none" for no
// goals. Invalid text is returned unchanged.
std::string CanonicalGoals(std::string_view specification);

// Parses a specification; empty or "none" means no goals. InvalidArgument says which part
// is wrong, and what is allowed.
absl::StatusOr<GoalSpec> ParseGoals(std::string_view specification);

}  // namespace syncline
