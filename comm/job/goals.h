// What a job is meant to reach (docs/goals.md), as people write it:
//
//   samples_per_s>=2000,step_p95_ms<=150,participation>=0.9,wire_mb_per_step<=40,budget=0.01
//
// `budget` is the share of the time in which a goal may be missed. Nothing of a job's
// training depends on its goals.
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
  kSamplesPerSecond,  // of all workers together, as they say them with their gradients
  kStepP95,           // milliseconds from one step to the next, on any worker
  kParticipation,  // workers that a step is made of, over those the job was declared for
  kWireMbPerStep,  // MB that a worker sends and receives for a step, mean of all
};
inline constexpr size_t kGoalKinds = 4;
inline constexpr double kDefaultGoalBudget = 0.01;
inline constexpr size_t kMaxGoalsBytes = 256;

// "samples_per_s" and so on: what specifications, JSON and labels of metrics have.
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

// The same of all specifications that mean the same: "none" of no goals, and of what cannot be
// read itself.
std::string CanonicalGoals(std::string_view specification);

// Of an empty specification, or "none", no goals. InvalidArgument says which part is wrong,
// and what is allowed.
absl::StatusOr<GoalSpec> ParseGoals(std::string_view specification);

}  // namespace syncline
