#include "comm/job/goals.h"

#include <algorithm>
#include <array>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "comm/base/nearest.h"
#include "comm/base/printable.h"
#include "comm/base/status.h"

namespace syncline {
namespace {

struct Known {
  std::string_view name;
  double lowest;
  double highest;
};
// Indexed by GoalKind.
constexpr std::array<Known, kGoalKinds> kKnown = {{{"samples_per_s", 1e-3, 1e12},
                                                   {"step_p95_ms", 1e-3, 1e8},
                                                   {"participation", 1e-3, 1},
                                                   {"wire_mb_per_step", 1e-6, 1e9}}};
constexpr Known kBudget = {"budget", 1e-4, 0.1};

absl::Status Wrong(absl::string_view part, absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat("goals: '", Printable(std::string(part)), "' ", why));
}

absl::StatusOr<double> Number(absl::string_view part, absl::string_view digits,
                              const Known& known) {
  double value = 0;
  // NaN fails both comparisons.
  if (absl::SimpleAtod(digits, &value) && value >= known.lowest &&
      value <= known.highest) {
    return value;
  }
  return Wrong(part,
               absl::StrCat("needs a number from ", known.lowest, " to ", known.highest));
}

std::string WhatThereIs() {
  return "samples_per_s>=N, step_p95_ms<=N, participation>=N, wire_mb_per_step<=N and "
         "budget=SHARE";
}

absl::StatusOr<GoalKind> KindOf(absl::string_view part, absl::string_view name) {
  std::vector<std::string_view> names;
  for (size_t i = 0; i < kGoalKinds; ++i) {
    if (kKnown[i].name == std::string_view(name.data(), name.size())) {
      return static_cast<GoalKind>(i);
    }
    names.push_back(kKnown[i].name);
  }
  const std::string_view near = NearestName({name.data(), name.size()}, names);
  return Wrong(part, near.empty()
                         ? absl::StrCat("is not a goal; there are ", WhatThereIs())
                         : absl::StrCat("is not a goal; did you mean '",
                                        absl::string_view(near.data(), near.size()),
                                        "'? There are ", WhatThereIs()));
}

absl::StatusOr<Goal> ParseGoal(absl::string_view part) {
  const size_t sign = part.find_first_of("<>=");
  if (sign == absl::string_view::npos || part.substr(sign).size() < 2) {
    return Wrong(part, absl::StrCat("is not a goal; there are ", WhatThereIs()));
  }
  const absl::string_view name = absl::StripAsciiWhitespace(part.substr(0, sign));
  SYNCLINE_ASSIGN_OR_RETURN(const GoalKind kind, KindOf(part, name));
  Goal goal = {.kind = kind};
  const absl::string_view wanted = goal.IsAtLeast() ? ">=" : "<=";
  if (part.substr(sign, 2) != wanted) {
    return Wrong(part, absl::StrCat("must be written ", name, wanted, "NUMBER"));
  }
  SYNCLINE_ASSIGN_OR_RETURN(
      goal.limit, Number(part, absl::StripAsciiWhitespace(part.substr(sign + 2)),
                         kKnown[static_cast<size_t>(kind)]));
  return goal;
}

}  // namespace

std::string_view GoalName(GoalKind kind) {
  return kKnown[static_cast<size_t>(kind)].name;
}

std::string Goal::Written() const {
  return absl::StrFormat("%s%s%.10g", std::string(GoalName(kind)),
                         IsAtLeast() ? ">=" : "<=", limit);
}

absl::StatusOr<GoalSpec> ParseGoals(std::string_view specification) {
  const absl::string_view all(specification.data(), specification.size());
  if (all.size() > kMaxGoalsBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "goals have ", all.size(), " bytes, at most ", kMaxGoalsBytes, " are allowed"));
  }
  GoalSpec spec;
  const absl::string_view stripped = absl::StripAsciiWhitespace(all);
  if (stripped.empty() || stripped == "none") return spec;
  std::set<std::string_view> seen;
  const auto check_once = [&](absl::string_view part, std::string_view name) {
    return seen.insert(name).second ? absl::OkStatus() : Wrong(part, "is given twice");
  };
  for (const absl::string_view one : absl::StrSplit(stripped, ',')) {
    const absl::string_view part = absl::StripAsciiWhitespace(one);
    const std::pair<absl::string_view, absl::string_view> sides =
        absl::StrSplit(part, absl::MaxSplits('=', 1));
    if (absl::StripAsciiWhitespace(sides.first) == "budget") {
      SYNCLINE_RETURN_IF_ERROR(check_once(part, kBudget.name));
      SYNCLINE_ASSIGN_OR_RETURN(
          spec.budget, Number(part, absl::StripAsciiWhitespace(sides.second), kBudget));
      continue;
    }
    SYNCLINE_ASSIGN_OR_RETURN(const Goal goal, ParseGoal(part));
    SYNCLINE_RETURN_IF_ERROR(check_once(part, GoalName(goal.kind)));
    spec.goals.push_back(goal);
  }
  if (spec.goals.empty()) {
    return Wrong(stripped,
                 absl::StrCat("names a budget and no goal; there are ", WhatThereIs()));
  }
  std::ranges::sort(spec.goals, {}, &Goal::kind);
  return spec;
}

std::string CanonicalGoals(std::string_view specification) {
  const absl::StatusOr<GoalSpec> spec = ParseGoals(specification);
  if (!spec.ok()) return std::string(specification);
  if (spec->goals.empty()) return "none";
  std::string written;
  for (const Goal& goal : spec->goals) {
    absl::StrAppend(&written, written.empty() ? "" : ",", goal.Written());
  }
  if (spec->budget != kDefaultGoalBudget) {
    absl::StrAppendFormat(&written, ",budget=%.10g", spec->budget);
  }
  return written;
}

}  // namespace syncline
