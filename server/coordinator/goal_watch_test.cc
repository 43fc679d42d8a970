#include "server/coordinator/goal_watch.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
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
    job_.phase = JobPhase::kRunning;
    job_.expected_workers = workers;
    job_.participants = workers;
    for (uint32_t rank = 0; rank < workers; ++rank) {
      job_.members.push_back({.rank = rank, .incarnation = 1});
    }
    Seconds(11, absl::Milliseconds(100));  // is seen; the first window is not judged
  }

  // Steps of this length, for a second; an infinite one: none.
  void Second(absl::Duration step) { Pass(absl::Seconds(1), step); }
  void Pass(absl::Duration time, absl::Duration step) {
    now_ += time;
    const absl::Duration before = std::exchange(since_step_, since_step_ + time);
    for (absl::Duration took = std::max(step, before); since_step_ >= took; took = step) {
      since_step_ -= took;
      for (MemberView& member : job_.members) Step(member, took);
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
  static void Step(MemberView& member, absl::Duration took) {
    ++member.phases.steps;
    if (member.name == "older") return;
    member.samples += 16;
    member.bytes += 3'000'000;
    member.durations.Add(took);
  }

  GoalWatch watch_;
  JobView job_;
  absl::Duration now_ = absl::Seconds(1000);
  absl::Duration since_step_ = {};
  std::vector<std::string> news_;
};

constexpr absl::Duration kFast = absl::Milliseconds(100);
constexpr absl::Duration kSlow = absl::Milliseconds(250);
constexpr absl::Duration kNever = absl::InfiniteDuration();

TEST(GoalWatch, MeasuresWhatTheJobDid) {
  Watched job(
      "samples_per_s>=1,step_p95_ms<=150,participation>=0.5,wire_mb_per_step<=10");
  EXPECT_FALSE(job.View().now.has_value()) << "the first window is not judged";
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

// So that an answer is not judged by what was before it.
TEST(GoalWatch, TheAgeOfAValueIsSinceItsWindowBegan) {
  Watched job("step_p95_ms<=150");
  job.Seconds(10, kFast);
  EXPECT_EQ(job.View().now_age, absl::Seconds(10)) << "the window has just ended";
  job.Seconds(7, kFast);
  EXPECT_EQ(job.View().now_age, absl::Seconds(17));
  job.Seconds(3, kFast);
  EXPECT_EQ(job.View().now_age, absl::Seconds(10)) << "that of the next one";
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
  EXPECT_THAT(job.TakeNews(),
              ElementsAre(HasSubstr(
                  "its error budget is spent; it may be missed in 2 % of an hour")));
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
  job.Seconds(60, kNever);
  EXPECT_NEAR(job.View(1).missed_seconds, 0, 1e-6) << "a step of a minute may be one";
  job.Second(kNever);
  EXPECT_EQ(*job.View(0).now, 0);
  EXPECT_NEAR(*job.View(1).now, 61'000, 2'000);
  EXPECT_NEAR(*job.View(2).now, 3, 1e-6) << "of the last step that there was";
  EXPECT_NEAR(job.View(0).missed_seconds, 61, 1e-6);
  EXPECT_NEAR(job.View(1).missed_seconds, 61, 1e-6);
  job.Seconds(10, kFast);  // it goes on: the long step has been counted
  job.Seconds(10, kFast);
  EXPECT_NEAR(*job.View(0).now, 320, 1);
}

// Bounds of windows cut steps: 25 s each, so that two or three end in a window.
TEST(GoalWatch, RatesAreThoseOfStepsAndNotOfWindows) {
  Watched job("samples_per_s>=1.2,step_p95_ms<=26000", 2);
  job.Seconds(1800, absl::Seconds(25));
  EXPECT_NEAR(*job.View(0).now, 2 * 16 / 25.0, 1e-6);
  EXPECT_EQ(job.View(0).missed_seconds, 0);
  EXPECT_EQ(job.View(1).missed_seconds, 0);
  EXPECT_GT(job.View(0).met_seconds, 1600);
}

// As often as they are heard of: each 6 s here.
TEST(GoalWatch, RatesAreThoseOfStepsAndNotOfHeartbeats) {
  Watched job("samples_per_s>=310", 2);
  for (int i = 0; i < 100; ++i) job.Pass(absl::Seconds(6), kFast);
  EXPECT_NEAR(*job.View().now, 320, 1e-6);
  EXPECT_EQ(job.View().missed_seconds, 0);
}

TEST(GoalWatch, StepsLongerThanWindowsAreWhatTheyAre) {
  Watched job("step_p95_ms<=80000,samples_per_s>=0.1", 1);
  job.Seconds(180, absl::Seconds(90));  // the first of them is late: it was 0.1 s before
  const double missed = job.View(0).missed_seconds;
  job.Seconds(1200, absl::Seconds(90));
  EXPECT_NEAR(*job.View(1).now, 90'000, 2'700);
  EXPECT_TRUE(job.View(1).is_missed);
  EXPECT_EQ(job.View(1).met_seconds, 0) << "also while such a step is under way";
  EXPECT_NEAR(*job.View(0).now, 16 / 90.0, 1e-6);
  EXPECT_EQ(job.View(0).missed_seconds, missed);
}

// Whatever part of a step windows and the limit of lateness cut off.
TEST(GoalWatch, StepsOfAnyLengthThatAreUsualAreNotLate) {
  for (int seconds = 5; seconds < 400; seconds += 7) {
    const absl::Duration step = absl::Seconds(seconds);
    Watched job(absl::StrCat("samples_per_s>=", 15.9 / seconds), 1);
    job.Seconds(3 * seconds + 120, step);
    const double missed = job.View().missed_seconds;
    job.Seconds(20 * seconds, step);
    EXPECT_EQ(job.View().missed_seconds, missed) << seconds;
  }
}

TEST(GoalWatch, AJobThatHangsMeetsNoGoalOfMinutes) {
  Watched job("step_p95_ms<=120000");
  job.Seconds(20, kFast);
  const double met = job.View().met_seconds;
  job.Seconds(3600, kNever);
  EXPECT_EQ(job.View().met_seconds, met) << "nobody knows for the first two minutes";
  EXPECT_GT(job.View().missed_seconds, 3600 - 200);
  EXPECT_TRUE(job.View().is_missed);
}

// Looks come a little late, each by something else.
TEST(GoalWatch, ParticipationIsExact) {
  for (const uint32_t participants : {9u, 10u}) {
    Watched job(participants == 10 ? "participation>=1" : "participation>=0.9", 10);
    job.job().participants = participants;
    job.Seconds(10, kFast);
    for (int64_t i = 0; i < 1000; ++i) {
      job.Pass(absl::Seconds(1) + absl::Nanoseconds(i * 7'919'123 % 30'000'001), kFast);
    }
    EXPECT_EQ(job.View().missed_seconds, 0) << participants;
    EXPECT_FALSE(job.View().is_missed);
  }
}

TEST(GoalWatch, WindowsWithoutAFigureEndARow) {
  Watched job("wire_mb_per_step<=1,budget=0.1", 1);
  job.Seconds(20, kFast);  // two windows miss
  job.Seconds(3700, kNever);
  EXPECT_THAT(job.TakeNews(), IsEmpty());
  job.Seconds(20, kFast);
  EXPECT_THAT(job.TakeNews(), IsEmpty());
  job.Seconds(10, kFast);
  EXPECT_THAT(job.TakeNews(), ElementsAre(HasSubstr("is missed: 3 for ")));
}

TEST(GoalWatch, OneWindowOfAMinuteSpendsNoBudget) {
  Watched job("step_p95_ms<=15000", 1);
  job.Seconds(600, absl::Seconds(10));
  job.Seconds(20, absl::Seconds(20));
  job.Seconds(600, absl::Seconds(10));
  EXPECT_THAT(job.TakeNews(), IsEmpty());
  job.Seconds(20, absl::Seconds(20));
  job.Seconds(600, absl::Seconds(10));
  EXPECT_THAT(job.TakeNews(), ElementsAre(HasSubstr("its error budget is spent")));
}

// 200 events are kept of a job, of all kinds.
TEST(GoalWatch, SaysOfAGoalThatComesAndGoesLittle) {
  Watched job("step_p95_ms<=150,budget=0.1");
  for (int i = 0; i < 60; ++i) {
    job.Seconds(30, kSlow);
    job.Seconds(30, kFast);
  }
  EXPECT_LE(job.TakeNews().size(), 6U) << "in an hour";
  job.Seconds(20 * 60, kSlow);
  EXPECT_THAT(job.TakeNews(), ElementsAre(HasSubstr("is missed: ")))
      << "for more than ten minutes now";
}

TEST(GoalWatch, AJobThatIsOverWillMissNothing) {
  Watched job("step_p95_ms<=150");
  absl::Duration step = absl::Milliseconds(80);
  for (int i = 0; i < 300 && !job.View().missed_in; ++i) {
    job.Second(step += absl::Microseconds(150));
  }
  ASSERT_TRUE(job.View().missed_in.has_value());
  job.job().phase = JobPhase::kOver;
  job.Second(kNever);
  EXPECT_FALSE(job.View().missed_in.has_value());
}

TEST(GoalWatch, CountsNothingBeforeTheFirstStepAndAfterTheEnd) {
  GoalWatch watch(*ParseGoals("samples_per_s>=10"));
  JobView job = {.phase = JobPhase::kWaiting, .expected_workers = 1};
  job.members.push_back({.rank = 0, .incarnation = 1});
  absl::Duration now;
  for (int i = 0; i < 200; ++i) {
    EXPECT_THAT(watch.Add(job, now += absl::Seconds(1)), IsEmpty());
  }
  EXPECT_EQ(watch.View(now).at(0).missed_seconds, 0);
  job.members[0].phases.steps = 1;
  job.phase = JobPhase::kOver;
  for (int i = 0; i < 200; ++i) watch.Add(job, now += absl::Seconds(1));
  EXPECT_EQ(watch.View(now).at(0).missed_seconds, 0);
}

// A new life counts from zero again, and a coordinator that came back hears of all that
// was.
TEST(GoalWatch, TakesNoFiguresOfBeforeForThoseOfAWindow) {
  Watched job("samples_per_s>=1", 1);
  job.Seconds(5, kFast);
  MemberView& member = job.job().members[0];
  member = {.rank = 0, .incarnation = 2};
  job.Seconds(5, kFast);
  EXPECT_NEAR(*job.View().now, 160, 1e-6);
  member.incarnation = 3;
  member.samples = 1'000'000'000;
  job.Seconds(10, kFast);
  EXPECT_NEAR(*job.View().now, 160, 1e-6);
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
  EXPECT_NEAR(*job.View().now, 320, 1e-6);
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
