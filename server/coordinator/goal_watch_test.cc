#include "server/coordinator/goal_watch.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A job whose workers go as they are told, a second at a time.
class Watched {
 public:
  explicit Watched(const std::string& goals, uint32_t workers = 2)
      : watch_(*ParseGoals(goals)) {
    job_.phase = "running";
    job_.expected_workers = workers;
    job_.participants = workers;
    for (uint32_t rank = 0; rank < workers; ++rank) {
      job_.members.push_back({.rank = rank, .incarnation = 1});
    }
    Second(absl::Milliseconds(100));  // is seen
  }

  // Steps of this length, for a second; an infinite one: none.
  void Second(absl::Duration step) {
    now_ += absl::Seconds(1);
    for (MemberView& member : job_.members) {
      for (absl::Duration t = step; t <= absl::Seconds(1); t += step) {
        ++member.phases.steps;
        if (member.name == "older") continue;
        member.samples += 16;
        member.bytes += 3'000'000;
        member.durations.Add(step);
      }
    }
    ASSERT_TRUE(watch_.IsDue(now_));
    for (const GoalNews& news : watch_.Add(job_, now_)) news_.push_back(news.what);
  }
  void Seconds(int seconds, absl::Duration step) {
    for (int i = 0; i < seconds; ++i) Second(step);
  }

  GoalView View(size_t goal = 0) const { return watch_.View(now_).at(goal); }
  std::vector<std::string> TakeNews() { return std::exchange(news_, {}); }
  JobView& job() { return job_; }
  const GoalWatch& watch() const { return watch_; }
  absl::Duration now() const { return now_; }

 private:
  GoalWatch watch_;
  JobView job_;
  absl::Duration now_ = absl::Seconds(1000);
  std::vector<std::string> news_;
};

constexpr absl::Duration kFast = absl::Milliseconds(100);
constexpr absl::Duration kSlow = absl::Milliseconds(250);
constexpr absl::Duration kNever = absl::InfiniteDuration();

TEST(GoalWatch, MeasuresWhatTheJobDid) {
  Watched job(
      "samples_per_s>=1,step_p95_ms<=150,participation>=0.5,wire_mb_per_step<=10");
  EXPECT_FALSE(job.View().now.has_value()) << "before the first window is over";
  job.job().participants = 1;
  job.Seconds(10, kFast);
  EXPECT_NEAR(*job.View(0).now, 2 * 16 * 10, 1e-6);
  EXPECT_NEAR(*job.View(1).now, 100, 4);
  EXPECT_NEAR(*job.View(2).now, 0.5, 1e-6);
  EXPECT_NEAR(*job.View(3).now, 3, 1e-6);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(job.View(i).met_seconds, 10, 1e-6) << i;
    EXPECT_EQ(job.View(i).missed_seconds, 0) << i;
    EXPECT_EQ(job.View(i).budget_left, 1) << i;
  }
}

TEST(GoalWatch, OneSlowWindowBurnsBudgetAndIsNoNews) {
  Watched job("step_p95_ms<=150");
  job.Seconds(50, kFast);
  job.Seconds(10, kSlow);
  const GoalView view = job.View();
  EXPECT_FALSE(view.is_missed);
  EXPECT_NEAR(view.budget_left, 1 - 10.0 / 36, 1e-6) << "1 % of an hour is 36 s";
  EXPECT_NEAR(view.burn_rate_5m, 10.0 / 300 / 0.01, 1e-6);
  EXPECT_NEAR(view.burn_rate_1h, 10.0 / 3600 / 0.01, 1e-6);
  EXPECT_THAT(job.TakeNews(), IsEmpty());
}

TEST(GoalWatch, SaysOnceThatAGoalIsMissedThatItsBudgetIsSpentAndThatItIsMetAgain) {
  Watched job("step_p95_ms<=150,budget=0.02");  // 72 s of an hour
  job.Seconds(60, kFast);
  job.Seconds(30, kSlow);
  EXPECT_TRUE(job.View().is_missed);
  EXPECT_THAT(job.TakeNews(),
              ElementsAre(HasSubstr("goal step_p95_ms<=150 is missed: 2")));
  job.Seconds(50, kSlow);
  EXPECT_THAT(job.TakeNews(), ElementsAre(HasSubstr("its error budget is spent; of the "
                                                    "last hour 2 % may be missed")));
  EXPECT_EQ(job.View().budget_left, 0);
  job.Seconds(30, kFast);
  EXPECT_FALSE(job.View().is_missed);
  EXPECT_THAT(job.TakeNews(), ElementsAre(HasSubstr("is met again: ")));
  job.Seconds(200, kFast);
  EXPECT_THAT(job.TakeNews(), IsEmpty());
  EXPECT_NEAR(job.View().missed_seconds, 80, 1e-6);
}

TEST(GoalWatch, ForgetsWhatIsLongerAgoThanItsSpans) {
  Watched job("step_p95_ms<=150");
  job.Seconds(50, kSlow);
  job.Seconds(275, kFast);
  EXPECT_NEAR(job.View().burn_rate_5m, 25.0 / 300 / 0.01, 1e-6) << "but for half of it";
  EXPECT_NEAR(job.View().burn_rate_1h, 50.0 / 36, 1e-6);
  job.Seconds(30, kFast);
  EXPECT_EQ(job.View().burn_rate_5m, 0);
  job.Seconds(3600, kFast);
  EXPECT_EQ(job.View().burn_rate_1h, 0);
  EXPECT_EQ(job.View().budget_left, 1);
}

TEST(GoalWatch, AJobThatStandsStillMissesItsRateAndItsStepTime) {
  Watched job("samples_per_s>=10,step_p95_ms<=150,wire_mb_per_step<=1");
  job.Seconds(10, kFast);
  job.Seconds(59, kNever);
  EXPECT_NEAR(job.View(1).missed_seconds, 0, 1e-6) << "a window of few steps is longer";
  job.Second(kNever);
  EXPECT_EQ(*job.View(0).now, 0);
  EXPECT_NEAR(*job.View(1).now, 60'000, 1e-6);
  EXPECT_NEAR(*job.View(2).now, 3, 1e-6) << "of the last step that there was";
  EXPECT_NEAR(job.View(0).missed_seconds, 60, 1e-6);
}

TEST(GoalWatch, CountsNothingBeforeTheFirstStepAndAfterTheEnd) {
  GoalWatch watch(*ParseGoals("samples_per_s>=10"));
  JobView job = {.phase = "waiting", .expected_workers = 1};
  job.members.push_back({.rank = 0, .incarnation = 1});
  absl::Duration now;
  for (int i = 0; i < 200; ++i) {
    EXPECT_THAT(watch.Add(job, now += absl::Seconds(1)), IsEmpty());
  }
  EXPECT_EQ(watch.View(now).at(0).missed_seconds, 0);
  job.members[0].phases.steps = 1;
  job.phase = "over";
  for (int i = 0; i < 200; ++i) watch.Add(job, now += absl::Seconds(1));
  EXPECT_EQ(watch.View(now).at(0).missed_seconds, 0);
}

// A new life counts from zero again, and a coordinator that came back hears of all that was.
TEST(GoalWatch, TakesNoFiguresOfBeforeForThoseOfAWindow) {
  Watched job("samples_per_s>=1", 1);
  job.Seconds(5, kFast);
  MemberView& member = job.job().members[0];
  member = {.rank = 0, .incarnation = 2};
  job.Seconds(1, kFast);  // is seen
  job.Seconds(4, kFast);
  EXPECT_NEAR(*job.View().now, 16 * (50 + 40) / 10.0, 1e-6);
  member.incarnation = 3;
  member.samples = 1'000'000'000;
  job.Seconds(10, kFast);
  EXPECT_NEAR(*job.View().now, 16 * 90 / 10.0, 1e-6);
}

TEST(GoalWatch, WarnsBeforeATrendMissesTheGoalOnce) {
  Watched job("step_p95_ms<=150");
  absl::Duration step = absl::Milliseconds(80);
  std::vector<std::string> news;
  for (int i = 0; i < 240 && news.empty(); ++i) {
    job.Second(step += absl::Microseconds(150));
    news = job.TakeNews();
  }
  ASSERT_THAT(news,
              ElementsAre(HasSubstr("goal step_p95_ms<=150 will be missed in about")));
  EXPECT_LT(step, absl::Milliseconds(150));
  ASSERT_TRUE(job.View().missed_in.has_value());
  // As far as it is from the limit, by 0.15 ms a second.
  const double expected =
      absl::FDivDuration(absl::Milliseconds(150) - step, absl::Microseconds(150));
  EXPECT_NEAR(absl::ToDoubleSeconds(*job.View().missed_in), expected, 0.3 * expected);
  for (int i = 0; i < 60; ++i) job.Second(step += absl::Microseconds(150));
  EXPECT_THAT(job.TakeNews(), IsEmpty());
}

// What a rank did that has left is no baseline of the one that takes its place.
TEST(GoalWatch, KnowsMembersOnly) {
  Watched job("samples_per_s>=1", 2);
  job.Seconds(5, kFast);
  const MemberView gone = job.job().members.back();
  job.job().members.pop_back();
  job.Seconds(1, kFast);
  job.job().members.push_back(gone);
  job.job().members.back().samples += 1'000'000'000;
  job.Seconds(4, kFast);
  // Both for 5 s, one of them for 5 s more, the other for 3 since it is seen again.
  EXPECT_NEAR(*job.View().now, 16 * (100 + 50 + 30) / 10.0, 1e-6);
}

TEST(GoalWatch, SaysNothingOfWhatWorkersOfAnOlderReleaseDoNotSay) {
  Watched job("samples_per_s>=1,step_p95_ms<=150,participation>=0.5", 2);
  job.job().members.back() = {.rank = 1, .incarnation = 2, .name = "older"};
  job.Seconds(100, kFast);
  EXPECT_FALSE(job.View(0).now.has_value());
  EXPECT_FALSE(job.View(1).now.has_value());
  EXPECT_NEAR(*job.View(2).now, 1, 1e-6);
  EXPECT_THAT(job.TakeNews(), IsEmpty());
}

TEST(GoalWatch, IsDueOnceASecond) {
  const Watched job("step_p95_ms<=150");
  EXPECT_FALSE(job.watch().IsDue(job.now() + absl::Milliseconds(900)));
  EXPECT_TRUE(job.watch().IsDue(job.now() + absl::Seconds(1)));
}

}  // namespace
}  // namespace syncline
