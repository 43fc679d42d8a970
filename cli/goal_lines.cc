#include "cli/goal_lines.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "comm/base/printable.h"

namespace syncline {
namespace {

using Json = nlohmann::json;

// A single window that misses the goal does not count (server/coordinator/goal_watch.h).
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
    return absl::StrCat(line, ": no value yet\n");
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
    absl::StrAppendFormat(&line, ", burns at %.1f times the allowed rate", burn);
  const auto missed_in = goal.find("missed_in_seconds");
  if (missed_in != goal.end() && missed_in->is_number()) {
    absl::StrAppendFormat(&line, "; at this pace missed in %.0f min",
                          missed_in->get<double>() / 60);
  }
  return line + "\n";
}

std::string AnswerLines(const Json& answers) {
  if (!answers.is_object()) return "";
  std::string lines = absl::StrCat("  answers ", Printable(answers.value("setting", "")));
  // The state is empty when the job is over, because nothing is watched then.
  const std::string state = Printable(answers.value("state", ""));
  absl::StrAppend(&lines, state.empty() ? "" : ": ", state, "\n");
  const std::string last = Printable(answers.value("last", ""));
  if (last.empty()) return lines;
  absl::StrAppendFormat(&lines, "  the last one, %.0f min ago: %s\n",
                        answers.value("last_age_seconds", 0.0) / 60, last);
  return lines;
}

}  // namespace

std::string GoalLines(const Json& job) {
  std::string lines;
  for (const Json& goal : job.value("goals", Json::array())) lines += Line(goal);
  return lines + AnswerLines(job.value("answers", Json()));
}

GoalsInShort ShortGoalLine(const Json& job) {
  GoalsInShort goals;
  for (const Json& goal : job.value("goals", Json::array())) {
    absl::StrAppendFormat(
        &goals.line, "%s%s%s%.6g ", goals.line.empty() ? "" : "; ",
        Printable(goal.value("goal", "")),
        goal.value("at_least", false) ? ">=" : "<=", goal.value("limit", 0.0));
    goals.is_any_missed = goals.is_any_missed || goal.value("missed", false);
    const auto now = goal.find("now");
    if (now == goal.end() || !now->is_number()) {
      goals.line += "no value yet";
      continue;
    }
    const double left = goal.value("budget_left", 1.0);
    absl::StrAppendFormat(&goals.line, "%s, %.4g now, ",
                          StateOf(goal, now->get<double>()), now->get<double>());
    goals.line +=
        left <= 0 ? "budget spent" : absl::StrFormat("budget %.0f %%", 100 * left);
  }
  if (!goals.line.empty()) goals.line.insert(0, "goals: ");
  return goals;
}

}  // namespace syncline
