#include "cli/goal_lines.h"

#include "gtest/gtest.h"

namespace syncline {
namespace {

std::string Lines(const char* goals) {
  return GoalLines({{"goals", nlohmann::json::parse(goals)}});
}

TEST(GoalLines, SayWhatIsMetAndWhatIsLeft) {
  EXPECT_EQ(
      Lines(R"([{"goal": "step_p95_ms", "at_least": false, "limit": 150, "now": 132.25,
                       "missed": false, "budget_left": 0.84, "burn_rate_5m": 0,
                       "missed_in_seconds": null}])"),
      "  goal step_p95_ms <= 150: met, 132.25 now; 84 % of its error budget left\n");
}

TEST(GoalLines, SayHowFastABudgetBurnsAndWhenATrendMissesTheGoal) {
  EXPECT_EQ(
      Lines(R"([{"goal": "samples_per_s", "at_least": true, "limit": 2000, "now": 2100,
                       "missed": false, "budget_left": 0.5, "burn_rate_5m": 3.25,
                       "missed_in_seconds": 540}])"),
      "  goal samples_per_s >= 2000: met, 2100 now; 50 % of its error budget left, "
      "burns at 3.2 times the allowed rate; at this pace missed in 9 min\n");
}

TEST(GoalLines, SayThatTheLastWindowMissed) {
  EXPECT_EQ(
      Lines(R"([{"goal": "step_p95_ms", "at_least": false, "limit": 15000, "now": 20420,
                       "missed": false, "budget_left": 0.5, "burn_rate_5m": 20}])"),
      "  goal step_p95_ms <= 15000: missed just now, 20420 now; 50 % of its error budget "
      "left, burns at 20.0 times the allowed rate\n");
}

TEST(GoalLines, SayThatABudgetIsSpent) {
  EXPECT_EQ(
      Lines(R"([{"goal": "participation", "at_least": true, "limit": 0.9, "now": 0.5,
                       "missed": true, "budget_left": 0, "burn_rate_5m": 100}])"),
      "  goal participation >= 0.9: missed, 0.5 now; its error budget of the hour is "
      "spent, burns at 100.0 times the allowed rate\n");
}

TEST(GoalLines, SayNothingOfNoGoalAndLittleBeforeTheFirstFigure) {
  EXPECT_EQ(Lines("[]"), "");
  EXPECT_EQ(GoalLines(nlohmann::json::object()), "");
  EXPECT_EQ(Lines(R"([{"goal": "participation", "at_least": true, "limit": 0.9,
                       "now": null}])"),
            "  goal participation >= 0.9: no value yet\n");
}

TEST(GoalLines, SayWhatMayBeDoneAndWhatWasDone) {
  const auto answers = nlohmann::json::parse(R"({"answers": {
      "setting": "exclude_straggler", "given": {"exclude_straggler": 1}, "state": "x",
      "last": "", "last_age_seconds": 0}, "goals": []})");
  EXPECT_EQ(GoalLines(answers), "  answers exclude_straggler: x\n");
  auto given = answers;
  given["answers"]["last"] = "worker 1 (b:17) was slow\n";
  given["answers"]["last_age_seconds"] = 130;
  EXPECT_EQ(GoalLines(given),
            "  answers exclude_straggler: x\n"
            "  the last one, 2 min ago: worker 1 (b:17) was slow\\x0a\n");
  given["answers"]["state"] = "";  // as for a job that is over
  EXPECT_EQ(GoalLines(given),
            "  answers exclude_straggler\n"
            "  the last one, 2 min ago: worker 1 (b:17) was slow\\x0a\n");
  EXPECT_EQ(GoalLines({{"answers", nullptr}}), "");
}

TEST(GoalLines, InOneLineSayWhetherAnyIsMissed) {
  const auto job = nlohmann::json::parse(R"({"goals": [
      {"goal": "samples_per_s", "at_least": true, "limit": 2000, "now": 2140.5,
       "missed": false, "budget_left": 0.97},
      {"goal": "step_p95_ms", "at_least": false, "limit": 150, "now": 163.25,
       "missed": true, "budget_left": 0},
      {"goal": "participation", "at_least": true, "limit": 0.9, "now": null}]})");
  const GoalsInShort goals = ShortGoalLine(job);
  EXPECT_EQ(goals.line,
            "goals: samples_per_s>=2000 met, 2140 now, budget 97 %; step_p95_ms<=150 "
            "missed, 163.2 now, budget spent; participation>=0.9 no value yet");
  EXPECT_TRUE(goals.is_any_missed);
  const GoalsInShort none = ShortGoalLine(nlohmann::json::object());
  EXPECT_EQ(none.line, "");
  EXPECT_FALSE(none.is_any_missed);
}

}  // namespace
}  // namespace syncline
