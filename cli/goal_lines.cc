#include "cli/goal_lines.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "comm/base/printable.h"

namespace syncline {
namespace {

using Json = nlohmann::json;

// One window that misses is no news yet (server/coordinator/goal_watch.h).
const char* StateOf(const Json& goal, double now) {
  if (goal.value("missed", false)) return "missed";
  const double limit = goal.value("limit", 0.0);
  const bool is_met = goal.value("at_least", false) ? now >= limit : now <= limit;
  return is_met ? "met" : "missed just now";
}

std::string Line(const Json& goal) {
  std::string line = absl::StrFormat(
      "  goal %s %s %.6g", Printable(goal.value("goal", "")),
      goal.value("at_least", false) ? ">=" : "<=", goal.value("limit", 0.0));
  const auto now = goal.find("now");
  if (now == goal.end() || !now->is_number()) {
    return absl::StrCat(line, ": no figure yet\n");
  }
  absl::StrAppendFormat(&line, ": %s, %.6g now; ", StateOf(goal, now->get<double>()),
                        now->get<double>());
  const double left = goal.value("budget_left", 1.0);
  if (left <= 0) {
    line += "its error budget of the hour is spent";
  } else {
    absl::StrAppendFormat(&line, "%.0f %% of its error budget left", 100 * left);
  }
  const double burn = goal.value("burn_rate_5m", 0.0);
  if (burn > 0)
    absl::StrAppendFormat(&line, ", burns %.1f times as fast as it may", burn);
  const auto missed_in = goal.find("missed_in_seconds");
  if (missed_in != goal.end() && missed_in->is_number()) {
    absl::StrAppendFormat(&line, "; at this pace missed in %.0f min",
                          missed_in->get<double>() / 60);
  }
  return line + "\n";
}

}  // namespace

std::string GoalLines(const Json& job) {
  std::string lines;
  for (const Json& goal : job.value("goals", Json::array())) lines += Line(goal);
  return lines;
}

}  // namespace syncline
