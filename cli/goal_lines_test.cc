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
      "burns 3.2 times as fast as it may; at this pace missed in 9 min\n");
}

TEST(GoalLines, SayThatTheLastWindowMissed) {
  EXPECT_EQ(
      Lines(R"([{"goal": "step_p95_ms", "at_least": false, "limit": 15000, "now": 20420,
                       "missed": false, "budget_left": 0.5, "burn_rate_5m": 20}])"),
      "  goal step_p95_ms <= 15000: missed just now, 20420 now; 50 % of its error budget "
      "left, burns 20.0 times as fast as it may\n");
}

TEST(GoalLines, SayThatABudgetIsSpent) {
  EXPECT_EQ(
      Lines(R"([{"goal": "participation", "at_least": true, "limit": 0.9, "now": 0.5,
                       "missed": true, "budget_left": 0, "burn_rate_5m": 100}])"),
      "  goal participation >= 0.9: missed, 0.5 now; its error budget of the hour is "
      "spent, burns 100.0 times as fast as it may\n");
}

TEST(GoalLines, SayNothingOfNoGoalAndLittleBeforeTheFirstFigure) {
  EXPECT_EQ(Lines("[]"), "");
  EXPECT_EQ(GoalLines(nlohmann::json::object()), "");
  EXPECT_EQ(Lines(R"([{"goal": "participation", "at_least": true, "limit": 0.9,
                       "now": null}])"),
            "  goal participation >= 0.9: no figure yet\n");
}

}  // namespace
}  // namespace syncline
