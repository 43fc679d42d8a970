// How the coordinator watches the goals of jobs.
#include "server/coordinator/coordinator_restart_test_util.h"

namespace syncline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class CoordinatorGoals : public CoordinatorRestart {
 protected:
  absl::Status Update(const std::string& goals) {
    const CallAnswer answer = Call(UpdateJob{.job = "job", .goals = goals});
    changes_ = answer.changed.changes;
    return answer.status;
  }
  std::vector<GoalView> Goals() const {
    return coordinator_->View(now_).jobs.at(0).goals;
  }
  // Both workers make steps of that length for this many seconds.
  void Train(int seconds, absl::Duration step) {
    for (int i = 0; i < seconds; ++i) {
      for (const ConnectionId connection : {10, 11}) {
        Heartbeat& beat = beats_[connection];
        for (absl::Duration t = step; t <= absl::Seconds(1); t += step) {
          ++beat.step;
          ++beat.phases.steps;
          beat.samples += 8;
          beat.durations.Add(step);
        }
      }
      PassTimeBeating(absl::Seconds(1), {1, 2, 10, 11});
    }
  }

  std::vector<std::string> changes_;
};

TEST_F(CoordinatorGoals, MayBeGivenAtAnyTimeAndChangeNothingOfTraining) {
  Begin();
  EXPECT_THAT(Goals(), IsEmpty());
  const uint64_t epoch = coordinator_->View(now_).jobs.at(0).epoch;
  ASSERT_TRUE(Update("step_p95_ms<=150").ok());
  EXPECT_THAT(changes_, ElementsAre("goals from none to step_p95_ms<=150"));
  EXPECT_THAT(Said(EventKind::kSettings),
              ElementsAre("goals from none to step_p95_ms<=150"));
  PassTimeBeating(absl::Seconds(2), {1, 2, 10, 11});
  EXPECT_EQ(coordinator_->View(now_).jobs.at(0).epoch, epoch);
  ASSERT_EQ(Goals().size(), 1u);
  EXPECT_EQ(Goals()[0].goal.limit, 150);
  ASSERT_TRUE(Update(" step_p95_ms <= 150.0").ok());
  EXPECT_THAT(changes_, IsEmpty()) << "they are these already";
  ASSERT_TRUE(Update("none").ok());
  PassTimeBeating(absl::Seconds(2), {1, 2, 10, 11});
  EXPECT_THAT(Goals(), IsEmpty());
}

TEST_F(CoordinatorGoals, ThatMakeNoSenseChangeNothing) {
  Begin();
  ASSERT_TRUE(Update("step_p95_ms<=150").ok());
  const absl::Status refused = Update("step_p95_ms>=150");
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  const CallAnswer both =
      Call(UpdateJob{.job = "job", .optimizer = {{"lr", 0.125}}, .goals = "speed>=1"});
  EXPECT_THAT(std::string(both.status.message()), HasSubstr("is not a goal"));
  EXPECT_THAT(Said(EventKind::kSettings), testing::SizeIs(1)) << "nor does lr";
  PassTimeBeating(absl::Seconds(2), {1, 2, 10, 11});
  EXPECT_EQ(Goals().at(0).goal.limit, 150);
}

TEST_F(CoordinatorGoals, GoWithNewOptionsInOneUpdate) {
  Begin();
  const CallAnswer both = Call(UpdateJob{
      .job = "job", .optimizer = {{"lr", 0.125}}, .goals = "participation>=0.5"});
  ASSERT_TRUE(both.status.ok()) << both.status;
  EXPECT_THAT(both.changed.changes,
              ElementsAre(HasSubstr("lr from"),
                          HasSubstr("goals from none to participation>=0.5")));
}

TEST_F(CoordinatorGoals, ThatAreMissedAreEventsAndWarnings) {
  Begin();
  ASSERT_TRUE(Update("step_p95_ms<=150,samples_per_s>=1").ok());
  Train(30, absl::Milliseconds(100));
  EXPECT_THAT(Said(EventKind::kGoal), IsEmpty());
  ASSERT_EQ(Goals().size(), 2u);
  EXPECT_EQ(Goals()[1].budget_left, 1);
  EXPECT_NEAR(*Goals()[0].now, 160, 17);
  Train(90, absl::Milliseconds(200));
  EXPECT_THAT(Said(EventKind::kGoal),
              testing::Contains(HasSubstr("goal step_p95_ms<=150 is missed: ")));
  EXPECT_EQ(events_.back().job_name, "job");
  EXPECT_THAT(Logged(LogReason::Level::kWarning),
              testing::Contains(HasSubstr("job 'job': goal step_p95_ms<=150 is missed")));
  EXPECT_FALSE(Goals()[0].is_missed);
  EXPECT_TRUE(Goals()[1].is_missed);
  EXPECT_EQ(Goals()[1].budget_left, 0);
}

TEST_F(CoordinatorGoals, OutliveTheCoordinator) {
  Begin();
  ASSERT_TRUE(Update("step_p95_ms<=150").ok());
  Restart();
  PassTime(absl::Seconds(1));
  ASSERT_EQ(Goals().size(), 1u);
  EXPECT_EQ(Goals()[0].goal.limit, 150);
  ASSERT_TRUE(Update("none").ok());
  EXPECT_THAT(changes_, ElementsAre("goals from step_p95_ms<=150 to none"));
  Restart();
  PassTime(absl::Seconds(1));
  EXPECT_THAT(Goals(), IsEmpty());
}

TEST_F(CoordinatorGoals, MustBeTheSameForAllWorkers) {
  AttachServer(1);
  JobSpec job = TwoTensors(2);
  job.settings.goals = "step_p95_ms<=150";
  SayHello(10, job, {.rank = 0, .run_id = "run"});
  job.settings.goals = "step_p95_ms<=200";
  SayHello(11, job, {.rank = 1, .run_id = "run"});
  EXPECT_THAT(std::string(closed_.at(11).message()),
              HasSubstr("has goals 'step_p95_ms<=150', not 'step_p95_ms<=200'"));
}

TEST_F(CoordinatorGoals, OfAJobThatIsDeclaredAreChecked) {
  AttachServer(1);
  JobSpec job = TwoTensors(1);
  job.settings.goals = "participation>=2";
  SayHello(10, job, {.rank = 0, .run_id = "run"});
  EXPECT_THAT(std::string(closed_.at(10).message()), HasSubstr("from 0.001 to 1"));
}

}  // namespace
}  // namespace syncline
