// What remains of jobs, runs and servers that have ended.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "comm/base/failure.h"
#include "server/coordinator/coordinator_test_util.h"
#include "server/coordinator/growing_numbers.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;

class CoordinatorEnds : public CoordinatorTest {
 protected:
  // A job of one worker that begins and ends.
  void RunJob(const std::string& name, ConnectionId connection) {
    JobSpec job = TwoTensors(1);
    job.name = name;
    SayHello(connection, job, {.name = "w"});
    Say(connection, Leave{});
  }

  void HelloOfRun(ConnectionId connection, uint32_t rank, const std::string& run) {
    SayHello(connection, TwoTensors(2), {.rank = rank, .run_id = run, .name = "rerun"});
  }

  void FinishWithoutRank1() {
    Begin();
    Say(10, Heartbeat{.step = 60});
    Say(11, Disconnected{});
    PassTimeBeating(2 * kFailureTimeout, {1, 10});
    Say(10, Leave{});
    ASSERT_EQ(coordinator_->View(now_).jobs.at(0).phase, JobPhase::kOver);
  }

  size_t JobsShown() { return coordinator_->View(now_).jobs.size(); }
};

TEST_F(CoordinatorEnds, FinishedJobsAreShownForAnHour) {
  AttachServer(1);
  RunJob("short", 10);
  PassTimeBeating(absl::Minutes(59), {1});
  EXPECT_EQ(JobsShown(), 1u);
  PassTimeBeating(absl::Minutes(2), {1});
  EXPECT_EQ(JobsShown(), 0u);
}

TEST_F(CoordinatorEnds, OfManyFinishedJobsTheLatestAreShown) {
  AttachServer(1);
  for (uint32_t i = 0; i < 100; ++i) {
    RunJob(absl::StrCat("job", i), 100 + i);
    PassTimeBeating(absl::Seconds(1), {1});
  }
  EXPECT_EQ(JobsShown(), 64u);
  for (const JobView& job : coordinator_->View(now_).jobs) EXPECT_GE(job.job, 37u);
}

TEST_F(CoordinatorEnds, FinishedJobsShowTheirLastStep) {
  Begin();
  Say(10, Heartbeat{.step = 20});
  Say(11, Heartbeat{.step = 19});
  Say(10, Leave{});
  Say(11, Heartbeat{.step = 20});
  Say(11, Leave{});
  EXPECT_EQ(coordinator_->View(now_).jobs.at(0).step, 20u);
}

// Otherwise the worker would wait in a new run for members that have finished.
TEST_F(CoordinatorEnds, OneWhoWasLostIsToldThatTheOthersHaveFinished) {
  FinishWithoutRank1();
  SayHello(12, TwoTensors(2),
           {.rank = 1, .run_id = "run", .name = "back", .rejoins = true});
  ASSERT_TRUE(closed_.contains(12));
  EXPECT_EQ(FailureOf(closed_.at(12)), Failure::kJobOver) << closed_.at(12);
  EXPECT_THAT(std::string(closed_.at(12).message()),
              HasSubstr("finished at step 60 while worker 1 was away"));
}

TEST_F(CoordinatorEnds, OneWhoWasLostMayBeginAnewWithoutMeaningThatRun) {
  FinishWithoutRank1();
  SayHello(12, TwoTensors(2), {.rank = 1, .run_id = "run", .name = "anew"});
  EXPECT_FALSE(closed_.contains(12)) << closed_.at(12);
}

TEST_F(CoordinatorEnds, OneOfAnotherRunBeginsThatOne) {
  FinishWithoutRank1();
  SayHello(12, TwoTensors(2),
           {.rank = 1, .run_id = "other", .name = "other", .rejoins = true});
  EXPECT_FALSE(closed_.contains(12)) << closed_.at(12);
}

TEST_F(CoordinatorEnds, OneWhoLeftInOrderBeginsANewRun) {
  Begin();
  for (const ConnectionId worker : {10, 11}) Say(worker, Leave{});
  SayHello(12, TwoTensors(2),
           {.rank = 1, .run_id = "run", .name = "back", .rejoins = true});
  EXPECT_FALSE(closed_.contains(12)) << closed_.at(12);
}

TEST_F(CoordinatorEnds, NamesOutOfUseAreForgottenAndTheirNumbersDoNotComeBack) {
  AttachServer(1);
  RunJob("first", 10);
  const uint64_t epoch = Last<WorkerWelcome>(10)->epoch;
  for (uint32_t i = 0; i < 1500; ++i) {
    const ConnectionId connection = 100 + i;
    Say(connection, ServerHello{absl::StrCat("spot", i), {"address"}, "sysv"});
    Say(connection, Leave{});
    RunJob(absl::StrCat("job", i), 10000 + i);
    PassTime(absl::ZeroDuration());
  }
  EXPECT_LT(state_.size(), 100000u);
  auto again = NewCoordinator();
  ASSERT_TRUE(again->Restore({state_}, specs_.reader()).ok());
  coordinator_ = std::move(again);
  told_.clear();
  AttachServer(1);
  EXPECT_GT(Last<ServerWelcome>(1)->incarnation, 1u);
  RunJob("first", 11);
  EXPECT_GT(Last<WorkerWelcome>(11)->epoch, epoch);
}

TEST(GrowingNumbers, BeginAboveAllThatWasForgotten) {
  GrowingNumbers numbers;
  for (int i = 0; i < 5; ++i) numbers.Next("often");
  numbers.Next("once");
  numbers.Next("used");
  numbers.Prune(3, [](const std::string&) { return false; });
  EXPECT_EQ(numbers.values().size(), 3u);
  numbers.Prune(2, [](const std::string& name) { return name == "used"; });
  EXPECT_EQ(numbers.values().size(), 1u);
  EXPECT_EQ(numbers.Of("used"), 1u);
  EXPECT_EQ(numbers.Next("once"), 6u);
  const GrowingNumbers restored(numbers.values(), numbers.floor());
  EXPECT_EQ(restored.Of("often"), 5u);
  EXPECT_EQ(restored.Of("once"), 6u);
}

TEST_F(CoordinatorEnds, ARerunWaitsWhileItsDeadPredecessorHoldsTheName) {
  Begin();
  HelloOfRun(20, 0, "rerun");
  EXPECT_EQ(FailureOf(closed_[20]), Failure::kJobRefused) << "the other run lives";
  Say(10, Disconnected{});
  Say(11, Disconnected{});
  HelloOfRun(21, 0, "rerun");
  HelloOfRun(22, 1, "rerun");
  EXPECT_FALSE(closed_.contains(21)) << closed_[21];
  EXPECT_THAT(Last<Waiting>(21)->reason,
              HasSubstr("waits for the end of the last run of job 'job': its workers "
                        "vanished without leaving"));
  // The workers are dropped, and the weights wait for workers that return.
  PassTimeBeating(kFailureTimeout / 2, {1, 21, 22});
  EXPECT_FALSE(Last<WorkerWelcome>(21).has_value());
  told_[21].clear();
  PassTimeBeating(6 * kFailureTimeout, {1, 21, 22});
  EXPECT_FALSE(closed_.contains(21)) << closed_[21];
  EXPECT_TRUE(Last<WorkerWelcome>(21).has_value());
  EXPECT_TRUE(Last<WorkerWelcome>(22).has_value());
}

TEST_F(CoordinatorEnds, ARerunThatWaitedIsRefusedWhenTheOtherRunComesBack) {
  Begin();
  Say(10, Disconnected{});
  Say(11, Disconnected{});
  HelloOfRun(21, 0, "rerun");
  EXPECT_FALSE(closed_.contains(21)) << closed_[21];
  Say(10, Returned{});
  PassTimeBeating(absl::Seconds(1), {1, 10, 21});
  EXPECT_EQ(FailureOf(closed_[21]), Failure::kJobRefused) << closed_[21];
}

// The host's cable was cut, so the stream did not break.
TEST_F(CoordinatorEnds, ARankThatASilentProcessHoldsIsWaitedFor) {
  Begin();
  HelloOfRun(20, 0, "run");
  EXPECT_EQ(FailureOf(closed_[20]), Failure::kJobRefused);
  PassTimeBeating(absl::Seconds(3), {1, 11});
  HelloOfRun(21, 0, "run");
  EXPECT_FALSE(closed_.contains(21)) << closed_[21];
  EXPECT_THAT(Last<Waiting>(21)->reason, HasSubstr("waits for rank 0 of job 'job'"));
  HelloOfRun(22, 1, "run");
  EXPECT_EQ(FailureOf(closed_[22]), Failure::kJobRefused) << closed_[22];
  PassTimeBeating(kFailureTimeout, {1, 11, 21});
  EXPECT_TRUE(Last<WorkerWelcome>(21).has_value());
}

TEST_F(CoordinatorEnds, ALossOfAStepThatNeverComesIsForgotten) {
  Begin();
  Say(10, LossReport{.step = ~uint64_t{0}, .loss = 99, .samples = 1});
  for (uint64_t step = 0; step < 50; ++step) {
    Say(10, LossReport{.step = step, .loss = 3, .samples = 1});
    Say(11, LossReport{.step = step, .loss = 5, .samples = 1});
  }
  EXPECT_EQ(coordinator_->View(now_).jobs.at(0).loss, 4.0);
}

TEST_F(CoordinatorEnds, ARangeTestTakesNoLossBeyondItsEnd) {
  AttachServer(1);
  JobSpec job = TwoTensors(1);
  job.training.optimizer.options = {{"lr", 1}};
  job.training.schedule = {
      "range_test", {{"first_factor", 1e-4}, {"last_factor", 1}, {"total_steps", 4}}};
  SayHello(10, job, {.name = "x"});
  for (const uint64_t step : {uint64_t{0}, uint64_t{4}, uint64_t{6}, ~uint64_t{0}}) {
    Say(10, LossReport{.step = step, .loss = 1, .samples = 1});
  }
  EXPECT_EQ(coordinator_->View(now_).jobs.at(0).loss_curve.size(), 2u);
}

}  // namespace
}  // namespace syncline
