// How a job ends that saves its last step.
#include <memory>
#include <string>
#include <variant>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator/saved_jobs_test_util.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;

// Lets all workers leave at that step.
class EndingJobs : public SavedJobs {
 protected:
  void End(uint64_t step) {
    next_step_[1] = step;
    for (const ConnectionId connection : {10, 11}) Say(connection, Leave{});
  }
  JobPhase Phase() { return coordinator_->View(now_).jobs.at(0).phase; }
  JobSpec EveryTen() const {
    JobSpec job = TwoTensors(2);
    job.settings.checkpoint_every.steps = 10;
    return job;
  }
};

TEST_F(EndingJobs, AreOverOnceTheirLastStepIsSaved) {
  BeginJob(EveryTen());
  Say(1, Written(10));
  Answer(CheckpointKept{.job = job_, .name = {.run = 3, .step = 10}});
  End(17);
  EXPECT_EQ(Phase(), JobPhase::kSaving);
  EXPECT_TRUE(Saved().is_under_way);
  EXPECT_FALSE(Last<DropJob>(1).has_value());
  EXPECT_FALSE(Create().status.ok()) << "its members are gone";
  ASSERT_TRUE(std::holds_alternative<SettleCheckpoints>(orders_.back()));
  Answer(CheckpointsSettled{job_});
  ASSERT_EQ(Last<CutAt>(1)->step, 17);
  EXPECT_TRUE(Last<CutAt>(1)->last);
  EXPECT_TRUE(Last<CommitEpoch>(1)->members.empty());
  EXPECT_THAT(coordinator_->View(now_).jobs.at(0).reason, HasSubstr("saving step 17"));
  PassTimeBeating(absl::Minutes(5), {1});
  Say(1, Written(17));
  EXPECT_EQ(std::get<KeepCheckpoint>(orders_.back()).manifest.name.step, 17);
  EXPECT_EQ(Phase(), JobPhase::kSaving);
  Answer(CheckpointKept{.job = job_, .name = {.run = 3, .step = 17}});
  EXPECT_EQ(Phase(), JobPhase::kOver);
  EXPECT_TRUE(Last<DropJob>(1).has_value());
  EXPECT_EQ(Saved().latest, "run3-step17");
}

TEST_F(EndingJobs, TheNextRunIsToldForWhatItWaits) {
  BeginJob(EveryTen());
  End(17);
  ASSERT_EQ(Phase(), JobPhase::kSaving);
  SayHello(20, EveryTen(), {.rank = 0, .run_id = "next", .name = "worker"});
  EXPECT_FALSE(closed_.contains(20)) << closed_[20];
  EXPECT_THAT(Last<Waiting>(20)->reason,
              HasSubstr("the last run of job 'job': its last step is being saved"));
}

TEST_F(EndingJobs, WaitForWhatIsBeingWrittenAndSaveTheLastStepOnceMoreIfThatFailed) {
  BeginJob(EveryTen());
  End(20);
  // The servers were already writing the step when the workers left.
  EXPECT_EQ(Last<CutAt>(1)->step, 20);
  EXPECT_TRUE(Last<CutAt>(1)->last) << "no push comes for blocks that lie behind";
  EXPECT_FALSE(Last<CutAt>(1)->again);
  EXPECT_EQ(orders_.size(), 0);
  CheckpointWritten busy = Written(20);
  busy.status = absl::UnavailableError("that of step 10 is still being written");
  Say(1, busy);
  // The failed attempt is deleted before the same files are written again.
  ASSERT_EQ(orders_.size(), 2);
  EXPECT_TRUE(std::holds_alternative<DiscardCheckpoint>(orders_[0]));
  EXPECT_TRUE(std::holds_alternative<SettleCheckpoints>(orders_[1]));
  EXPECT_FALSE(Last<CutAt>(1)->again);
  Answer(CheckpointsSettled{job_});
  EXPECT_EQ(Last<CutAt>(1)->step, 20);
  EXPECT_TRUE(Last<CutAt>(1)->again);
  Say(1, Written(20));
  Answer(CheckpointKept{.job = job_, .name = {.run = 3, .step = 20}});
  EXPECT_EQ(Phase(), JobPhase::kOver);
  EXPECT_EQ(Saved().latest, "run3-step20");
}

// A slow disk: the report arrives after the workers have left.
TEST_F(EndingJobs, KeepAnEarlierCheckpointThatWasStillBeingWritten) {
  BeginJob(EveryTen());
  End(25);
  Say(1, Written(10));
  ASSERT_FALSE(orders_.empty());
  ASSERT_TRUE(std::holds_alternative<KeepCheckpoint>(orders_.back()));
  EXPECT_EQ(std::get<KeepCheckpoint>(orders_.back()).manifest.name.step, 10);
  Answer(CheckpointKept{.job = job_, .name = {.run = 3, .step = 10}});
  EXPECT_EQ(Phase(), JobPhase::kSaving);
}

TEST_F(EndingJobs, AreNotSavedTwiceNorWithoutAScheduleNorWithoutAStep) {
  BeginJob(EveryTen());
  Say(1, Written(20));
  Answer(CheckpointKept{.job = job_, .name = {.run = 3, .step = 20}});
  End(20);
  EXPECT_EQ(Phase(), JobPhase::kOver);
  coordinator_ = std::make_unique<Coordinator>(
      CoordinatorOptions{.expected_servers = 1, .keeps_checkpoints = true});
  orders_.clear();
  BeginJob(TwoTensors(2));
  End(20);
  EXPECT_EQ(Phase(), JobPhase::kOver);
}

TEST_F(EndingJobs, AreOverWithAnErrorWhenTheLastStepCannotBeSaved) {
  BeginJob(EveryTen());
  End(7);
  Answer(CheckpointsSettled{job_});
  CheckpointWritten failed = Written(7);
  failed.status = absl::ResourceExhaustedError("No space left on device");
  Say(1, failed);
  EXPECT_EQ(Phase(), JobPhase::kOver);
  EXPECT_THAT(Saved().error, HasSubstr("run3-step7: No space left"));
}

TEST_F(EndingJobs, AreOverWithAnErrorWhenAServerNeverWrites) {
  BeginJob(EveryTen());
  End(7);
  Answer(CheckpointsSettled{job_});
  PassTimeBeating(absl::Minutes(29), {1});
  EXPECT_EQ(Phase(), JobPhase::kSaving);
  PassTimeBeating(absl::Minutes(2), {1});
  EXPECT_EQ(Phase(), JobPhase::kOver);
  EXPECT_THAT(Saved().error, HasSubstr("run3-step7: server 0 did not write it"));
}

TEST_F(EndingJobs, FailWhenAServerDies) {
  BeginJob(EveryTen());
  End(7);
  Answer(CheckpointsSettled{job_});
  PassTimeBeating(absl::Minutes(2), {});
  EXPECT_EQ(Phase(), JobPhase::kFailed);
  EXPECT_THAT(coordinator_->View(now_).jobs.at(0).reason, HasSubstr("is lost"));
}

// A requested checkpoint is of a later step than the one at which the workers left.
TEST_F(EndingJobs, DoNotWaitForStepsThatNeverCome) {
  JobSpec job = EveryTen();
  job.training.aggregation = Aggregation::kArrival;
  BeginJob(job);
  next_step_[1] = 16;
  ASSERT_TRUE(Create().status.ok());
  ASSERT_EQ(Last<CutAt>(1)->step, 17);
  Say(1, Written(10));
  Answer(CheckpointKept{.job = job_, .name = {.run = 3, .step = 10}});
  End(16);
  ASSERT_TRUE(std::holds_alternative<SettleCheckpoints>(orders_.back()));
  Answer(CheckpointsSettled{job_});
  EXPECT_EQ(Last<CutAt>(1)->step, 16);
  Say(1, Written(17));
  Say(1, Written(16));
  Answer(CheckpointKept{.job = job_, .name = {.run = 3, .step = 16}});
  EXPECT_EQ(Phase(), JobPhase::kOver);
  EXPECT_EQ(Saved().failed, 0u);
}

class EndingJobsOfTwoServers : public SavedJobsOfTwoServers {};

TEST_F(EndingJobsOfTwoServers, FailWhenTheCoordinatorIsStartedAnewMeanwhile) {
  JobSpec job = TwoTensors(2);
  job.settings.checkpoint_every.steps = 10;
  BeginOnTwo(job);
  for (const ConnectionId server : {1, 2}) Say(server, Written(10));
  Answer(CheckpointKept{.job = job_, .name = {.run = 3, .step = 10}});
  next_step_[1] = next_step_[2] = 17;
  for (const ConnectionId connection : {10, 11}) Say(connection, Leave{});
  Restart();
  ServerReturns(1, {});
  ServerReturns(2, {});
  const JobView view = coordinator_->View(now_).jobs.at(0);
  EXPECT_EQ(view.phase, JobPhase::kFailed);
  EXPECT_THAT(view.reason, HasSubstr("the last checkpoint is run3-step10"));
}

// The scheduled cut at the step where workers leave was lost with the old coordinator.
TEST_F(EndingJobsOfTwoServers, SaveTheLastStepThatWasBeingSavedBeforeARestart) {
  JobSpec job = TwoTensors(2);
  job.settings.checkpoint_every.steps = 10;
  BeginOnTwo(job);
  Say(1, Written(20));
  Restart();
  for (const ConnectionId server : {1, 2}) ServerReturns(server, {.cut = 20});
  for (const uint32_t rank : {0u, 1u}) {
    const auto welcome = Last<WorkerWelcome>(10 + rank);
    SayHello(100 + rank, job,
             {.rank = rank,
              .run_id = "run",
              .member = HeldMembership{.job = job_,
                                       .incarnation = welcome->incarnation,
                                       .session_key = welcome->session_key,
                                       .epoch = epoch_}});
  }
  next_step_[10] = next_step_[20] = 20;
  for (const ConnectionId connection : {100, 101}) Say(connection, Leave{});
  ASSERT_TRUE(std::holds_alternative<SettleCheckpoints>(orders_.back()));
  Answer(CheckpointsSettled{job_});
  EXPECT_TRUE(Last<CutAt>(10)->again);
  for (const ConnectionId server : {10, 20}) Say(server, Written(20));
  ASSERT_TRUE(std::holds_alternative<KeepCheckpoint>(orders_.back()));
  Answer(CheckpointKept{.job = job_, .name = {.run = 3, .step = 20}});
  const JobView view = coordinator_->View(now_).jobs.at(0);
  EXPECT_EQ(view.phase, JobPhase::kOver);
  EXPECT_EQ(view.checkpoint.latest, "run3-step20");
}

// Rank 1 dies again and again, and waits outside when rank 0 leaves.
TEST_F(EndingJobs, AreSavedAlsoWhenTheLastToLeaveWasInNoEpoch) {
  BeginJob(EveryTen());
  beats_[1].jobs = {JobProgress{.job = job_, .trained = 2}};
  PassTimeBeating(absl::Seconds(1), {1, 10, 11});
  for (const ConnectionId connection : {11, 12}) {
    Say(connection, Disconnected{});
    SayHello(connection + 1, EveryTen(), {.rank = 1, .run_id = "run", .name = "worker"});
  }
  ASSERT_FALSE(Last<WorkerWelcome>(13).has_value());
  next_step_[1] = 7;
  Say(10, Leave{});
  ASSERT_TRUE(Last<CommitEpoch>(1)->members.empty());
  Say(13, Leave{});
  ASSERT_FALSE(orders_.empty());
  EXPECT_TRUE(std::holds_alternative<SettleCheckpoints>(orders_.back()));
  Answer(CheckpointsSettled{job_});
  EXPECT_EQ(Last<CutAt>(1)->step, 7);
}

// Heartbeats of a worker that was ahead of its blocks, or died behind them, name another
// step.
TEST_F(EndingJobs, ShowTheStepThatIsTheirLast) {
  BeginJob(EveryTen());
  beats_[10].step = 9;
  Say(10, beats_[10]);
  End(7);
  EXPECT_EQ(coordinator_->View(now_).jobs.at(0).step, 7);
}

TEST_F(EndingJobs, KeepTheNextRunWaitingAndItBeginsWithTheirLastStep) {
  BeginJob(EveryTen());
  End(7);
  SayHello(20, EveryTen(), {.rank = 0, .run_id = "next", .name = "worker"});
  SayHello(21, EveryTen(), {.rank = 1, .run_id = "next", .name = "worker"});
  PassTimeBeating(absl::Minutes(1), {1, 20, 21});
  EXPECT_TRUE(closed_.count(20) == 0 && closed_.count(21) == 0);
  Answer(CheckpointsSettled{job_});
  Say(1, Written(7));
  Answer(CheckpointKept{.job = job_, .name = {.run = 3, .step = 7}});
  orders_.clear();
  PassTimeBeating(absl::Seconds(2), {1, 20, 21});
  ASSERT_EQ(orders_.size(), 1);
  EXPECT_EQ(std::get<FindCheckpoint>(orders_[0]).name, "job");
}

}  // namespace
}  // namespace syncline
