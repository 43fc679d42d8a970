// When jobs are saved, and which checkpoints they begin with.
#include <functional>
#include <memory>
#include <string>

#include "comm/base/failure.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator/saved_jobs_test_util.h"

namespace syncline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST_F(SavedJobs, BeginWhereTheirCheckpointIsAndNobodySeeds) {
  Announce(TwoTensors(2));
  ASSERT_EQ(orders_.size(), 1);
  const FindCheckpoint find = std::get<FindCheckpoint>(orders_[0]);
  EXPECT_EQ(find.name, "job");
  EXPECT_EQ(find.resume, "auto");
  EXPECT_FALSE(Last<ConfigureJob>(1).has_value());
  PassTimeBeating(absl::Seconds(5), {1, 10, 11});
  EXPECT_THAT(Last<Waiting>(10)->reason, HasSubstr("looking for its checkpoints"));
  next_step_[1] = 40;
  Beginning beginning = {.run = 3, .resumes = true};
  beginning.from.name = {.run = 2, .step = 40};
  // An option was changed while the earlier job ran.
  beginning.from.training.optimizer.options["lr"] = 0.125;
  Answer(CheckpointFound{.job = find.job, .beginning = beginning});
  const auto configure = Last<ConfigureJob>(1);
  ASSERT_TRUE(configure.has_value());
  EXPECT_EQ(configure->checkpoint_run, 3);
  EXPECT_EQ(configure->resume_from, beginning.from.name);
  for (const ConnectionId connection : {10, 11}) {
    const auto welcome = Last<WorkerWelcome>(connection);
    ASSERT_TRUE(welcome.has_value());
    EXPECT_EQ(welcome->first_step, 40);
    EXPECT_FALSE(welcome->seeder);
  }
  const auto commit = Last<CommitEpoch>(1);
  ASSERT_TRUE(commit->training.has_value());
  EXPECT_EQ(commit->training->optimizer.options.at("lr"), 0.125);
  EXPECT_EQ(Saved().resumed_from, "run2-step40");
  EXPECT_THAT(Said(EventKind::kCheckpoint),
              ElementsAre("goes on from checkpoint run2-step40"));
  ASSERT_EQ(Said(EventKind::kSettings).size(), 1u);
  EXPECT_THAT(Said(EventKind::kSettings)[0], HasSubstr("to 0.125"));
}

// The store may have checkpoints of the job.
TEST_F(SavedJobs, WaitForAPlaceThatIsAwayAndNeverBeginAnew) {
  Announce(TwoTensors(2));
  const uint32_t job = std::get<FindCheckpoint>(orders_.at(0)).job;
  const auto away = [&] {
    Answer(CheckpointFound{.job = job,
                           .beginning = absl::UnavailableError("it does not answer")});
  };
  away();
  for (size_t asked = 2; asked < 12; ++asked) {
    EXPECT_EQ(orders_.size(), asked - 1) << "not at once";
    for (int second = 0; second < 40 && orders_.size() < asked; ++second) {
      PassTimeBeating(absl::Seconds(1), {1, 10, 11});
    }
    ASSERT_EQ(orders_.size(), asked);
    EXPECT_EQ(std::get<FindCheckpoint>(orders_.back()).resume, "auto");
    away();
  }
  PassTimeBeating(absl::Seconds(2), {1, 10, 11});
  EXPECT_THAT(Last<Waiting>(10)->reason,
              HasSubstr("waiting for its checkpoints: it does not answer, "));
  EXPECT_TRUE(closed_.empty());
  EXPECT_FALSE(Last<ConfigureJob>(1).has_value());
  EXPECT_THAT(Said(EventKind::kCheckpoint),
              ElementsAre("waits for its checkpoints: it does not answer"));
  while (orders_.size() == 11) PassTimeBeating(absl::Seconds(1), {1, 10, 11});
  next_step_[1] = 40;
  Beginning beginning = {.run = 3, .resumes = true};
  beginning.from.name = {.run = 2, .step = 40};
  Answer(CheckpointFound{.job = job, .beginning = beginning});
  ASSERT_TRUE(Last<ConfigureJob>(1).has_value());
  EXPECT_EQ(Last<ConfigureJob>(1)->resume_from, beginning.from.name);
}

TEST_F(SavedJobs, ThatBeginAnewAndSaveNothingDoNotWaitForAPlaceThatIsAway) {
  JobSpec job = TwoTensors(2);
  job.settings.resume = "never";
  Announce(job);
  Answer(CheckpointFound{.job = std::get<FindCheckpoint>(orders_.at(0)).job,
                         .beginning = absl::UnavailableError("it does not answer")});
  ASSERT_TRUE(Last<ConfigureJob>(1).has_value());
  EXPECT_EQ(Last<ConfigureJob>(1)->checkpoint_run, 0u);
  EXPECT_TRUE(Last<WorkerWelcome>(10).has_value());
  EXPECT_THAT(std::string(Create().status.message()),
              HasSubstr("their place did not answer when it began"));
}

TEST_F(SavedJobs, ThatBeginAnewAndAreSavedWaitForTheirPlace) {
  JobSpec job = TwoTensors(2);
  job.settings.resume = "never";
  job.settings.checkpoint_every.steps = 10;
  Announce(job);
  Answer(CheckpointFound{.job = std::get<FindCheckpoint>(orders_.at(0)).job,
                         .beginning = absl::UnavailableError("it does not answer")});
  EXPECT_FALSE(Last<ConfigureJob>(1).has_value());
}

// The job fails at step 47 and begins again with a checkpoint. These tests check its
// events and metrics.
class SavedJobsThatFail : public SavedJobs {
 protected:
  void FailAndBeginAgain(uint64_t checkpoint, const std::string& resume) {
    JobSpec job = TwoTensors(2);
    BeginJob(job);
    Say(10, Heartbeat{.step = 46});
    Say(11, Heartbeat{.step = 47});
    if (is_stopped_) {
      const LauncherStop stop = {.job = job.name, .run_id = "run", .ranks = {0, 1}};
      EXPECT_TRUE(Call(stop).status.ok());
      for (const ConnectionId worker : {10, 11}) Say(worker, Disconnected{});
      EXPECT_EQ(coordinator_->View(now_).jobs.at(0).phase, JobPhase::kOver);
    } else {
      Say(1, ConfigureFailed{job_, absl::DataLossError("the memory is damaged")});
    }
    job.settings.resume = resume;
    job.settings.push_codec =
        "int8";  // another declaration: DeclaredSpecs tells none apart by `resume`
    if (comes_too_early_) {
      SayHello(30, job, {.rank = 2, .run_id = "again", .name = "third"});
      EXPECT_TRUE(closed_.contains(30)) << "the job begins without it";
    }
    for (const uint32_t rank : {0u, 1u}) {
      SayHello(20 + rank, job, {.rank = rank, .run_id = "again", .name = "worker"});
    }
    next_step_[1] = checkpoint;
    Beginning beginning = {.run = 4, .resumes = checkpoint > 0};
    beginning.from.name = {.run = 3, .step = checkpoint};
    if (!orders_.empty()) {
      const auto& find = std::get<FindCheckpoint>(orders_.back());
      Answer(CheckpointFound{.job = find.job, .beginning = beginning});
    }
    ASSERT_TRUE(Last<WorkerWelcome>(20).has_value());
  }
  bool comes_too_early_ = false;
  bool is_stopped_ = false;
  uint64_t Rollbacks() const {
    return coordinator_->View(now_).jobs.at(0).recoveries.rollbacks;
  }
};

TEST_F(SavedJobsThatFail, SayHowManyStepsAreLost) {
  FailAndBeginAgain(40, "auto");
  EXPECT_EQ(Rollbacks(), 1u);
  EXPECT_THAT(Said(EventKind::kRecovery),
              ElementsAre("goes back from step 47, which its last run had reached, to "
                          "step 40: 7 steps are repeated"));
}

TEST_F(SavedJobsThatFail, SayThatAllAreLostWhereThereIsNoCheckpoint) {
  FailAndBeginAgain(0, "auto");
  EXPECT_EQ(Rollbacks(), 1u);
  EXPECT_THAT(Said(EventKind::kRecovery),
              ElementsAre(HasSubstr("to step 0: 47 steps are repeated")));
}

TEST_F(SavedJobsThatFail, LoseNothingWithACheckpointOfTheirLastStep) {
  FailAndBeginAgain(47, "latest");
  EXPECT_EQ(Rollbacks(), 0u);
  EXPECT_THAT(Said(EventKind::kRecovery), IsEmpty());
}

TEST_F(SavedJobsThatFail, AreNotThoseThatAUserStopped) {
  is_stopped_ = true;
  FailAndBeginAgain(40, "auto");
  EXPECT_EQ(Rollbacks(), 0u);
  EXPECT_THAT(Said(EventKind::kRecovery), IsEmpty());
}

TEST_F(SavedJobsThatFail, SayItThoughSomebodyCameTooEarly) {
  comes_too_early_ = true;
  FailAndBeginAgain(40, "auto");
  EXPECT_EQ(Rollbacks(), 1u);
  EXPECT_THAT(Said(EventKind::kRecovery), SizeIs(1));
}

TEST_F(SavedJobsThatFail, AreSentBackByWhoNamesACheckpoint) {
  FailAndBeginAgain(40, "run3-step40");
  EXPECT_EQ(Rollbacks(), 0u);
}

TEST_F(SavedJobs, EndWithTheReasonWhenTheirCheckpointCannotBeHad) {
  JobSpec job = TwoTensors(2);
  job.settings.resume = "run9-step9";
  Announce(job);
  const auto& find = std::get<FindCheckpoint>(orders_.at(0));
  EXPECT_EQ(find.resume, "run9-step9");
  Answer(CheckpointFound{.job = find.job,
                         .beginning = absl::NotFoundError("run9-step9 is not there")});
  EXPECT_THAT(std::string(closed_.at(10).message()), HasSubstr("is not there"));
  EXPECT_EQ(FailureOf(closed_.at(11)), Failure::kJobRefused);
}

TEST_F(SavedJobs, AreRefusedWithOtherSettingsThanTheirState) {
  Announce(TwoTensors(2));
  Beginning beginning = {.run = 3, .resumes = true};
  beginning.from.name = {.run = 2, .step = 40};
  beginning.from.declared.optimizer.name = "adamw";
  Answer(CheckpointFound{.job = std::get<FindCheckpoint>(orders_.at(0)).job,
                         .beginning = beginning});
  EXPECT_THAT(std::string(closed_.at(10).message()),
              HasSubstr("run2-step40 was made with different settings"));
}

TEST_F(SavedJobs, AreRefusedWithChangesThatMakeNoSense) {
  Announce(TwoTensors(2));
  Beginning beginning = {.run = 3, .resumes = true};
  beginning.from.name = {.run = 2, .step = 40};
  beginning.from.training.accumulate_steps = 0;
  Answer(CheckpointFound{.job = std::get<FindCheckpoint>(orders_.at(0)).job,
                         .beginning = beginning});
  EXPECT_EQ(FailureOf(closed_.at(10)), Failure::kJobRefused);
}

TEST_F(SavedJobs, AreCutBetweenThePhasesOfAnEpochWhenAsked) {
  BeginJob(TwoTensors(2));
  next_step_[1] = 7;
  const CallAnswer answer = Create();
  EXPECT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.finished_checkpoints, 0);
  ASSERT_TRUE(Last<CutAt>(1).has_value());
  EXPECT_EQ(Last<CutAt>(1)->step, 7);
  EXPECT_LT(PlaceOfLast<PrepareEpoch>(), PlaceOfLast<CutAt>());
  EXPECT_LT(PlaceOfLast<CutAt>(), PlaceOfLast<CommitEpoch>());
  EXPECT_TRUE(Saved().is_under_way);

  Say(1, Written(7));
  ASSERT_EQ(orders_.size(), 1);
  const auto keep = std::get<KeepCheckpoint>(orders_[0]);
  EXPECT_EQ(keep.manifest.name.ToString(), "run3-step7");
  EXPECT_EQ(keep.manifest.files.size(), 1);
  EXPECT_EQ(keep.keep, 3);
  EXPECT_EQ(Saved().written, 0);
  Answer(CheckpointKept{.job = job_, .name = keep.manifest.name});
  EXPECT_EQ(Saved().written, 1);
  EXPECT_EQ(Saved().latest, "run3-step7");
  EXPECT_EQ(Saved().bytes, 1000);
  EXPECT_FALSE(Saved().is_under_way);
  EXPECT_THAT(Said(EventKind::kCheckpoint).back(), HasSubstr(" is complete, 1000 bytes"));
  EXPECT_EQ(events_.back().took, absl::Seconds(2));
}

TEST_F(SavedJobs, AreNeverCutBeforeTheirFirstStepNorInTheMiddleOfAnUpdate) {
  JobSpec job = TwoTensors(2);
  job.training.accumulate_steps = 4;
  BeginJob(job);
  Create();
  EXPECT_EQ(Last<CutAt>(1)->step, 4);
}

TEST_F(SavedJobs, GoOnWhenAServerCannotWriteAndTheRestIsDeleted) {
  BeginJob(TwoTensors(2));
  next_step_[1] = 7;
  Create();
  CheckpointWritten failed = Written(7);
  failed.status = absl::ResourceExhaustedError("No space left on device");
  Say(1, failed);
  ASSERT_EQ(orders_.size(), 1);
  EXPECT_EQ(std::get<DiscardCheckpoint>(orders_[0]).name.ToString(), "run3-step7");
  EXPECT_EQ(Saved().failed, 1);
  EXPECT_THAT(Saved().error, HasSubstr("No space left"));
  EXPECT_TRUE(closed_.empty());
  Create();
  EXPECT_TRUE(Saved().is_under_way);
  EXPECT_THAT(Said(EventKind::kCheckpoint).back(),
              HasSubstr(" failed, earlier ones are kept: "));
}

TEST_F(SavedJobs, AreNeverCutTwiceAtOneStepAndLateWordsOpenNothing) {
  BeginJob(TwoTensors(2));
  next_step_[1] = 7;
  Create();
  CheckpointWritten failed = Written(7);
  failed.status = absl::ResourceExhaustedError("No space left on device");
  Say(1, failed);
  Say(1, Written(7));
  EXPECT_FALSE(Saved().is_under_way);
  Create();
  EXPECT_EQ(Last<CutAt>(1)->step, 8) << "no shard copies step 7 again";
}

TEST_F(SavedJobs, HaveTheTimeThatReadingTheirCheckpointTakes) {
  servers_answer_ = false;
  Announce(TwoTensors(2));
  Beginning beginning = {.run = 3, .resumes = true};
  beginning.from.name = {.run = 2, .step = 40};
  beginning.from.files = {{.name = "weights", .bytes = 4'000'000'000}};  // 200 s
  Answer(CheckpointFound{.job = std::get<FindCheckpoint>(orders_.at(0)).job,
                         .beginning = beginning});
  PassTimeBeating(absl::Seconds(240), {1, 10, 11});
  EXPECT_TRUE(closed_.empty());
  PassTimeBeating(absl::Seconds(20), {1, 10, 11});
  EXPECT_FALSE(closed_.empty());
}

TEST_F(SavedJobs, AreGivenUpWhenAServerNeverWrites) {
  BeginJob(TwoTensors(2));
  next_step_[1] = 7;
  Create();
  PassTimeBeating(absl::Minutes(29), {1, 10, 11});
  EXPECT_TRUE(Saved().is_under_way);
  PassTimeBeating(absl::Minutes(2), {1, 10, 11});
  EXPECT_FALSE(Saved().is_under_way);
  EXPECT_THAT(Saved().error, HasSubstr("server 0 did not write it within 30m"));
}

TEST_F(SavedJobs, OfAScheduleInStepsAreToldToThoseWhoTrainNothing) {
  JobSpec job = TwoTensors(2);
  job.settings.checkpoint_every.steps = 10;
  BeginJob(job);
  Say(1, Written(10));
  EXPECT_EQ(Last<CutAt>(1)->step, 10);
  EXPECT_EQ(std::get<KeepCheckpoint>(orders_.at(0)).manifest.name.step, 10);
  // A step that is cut by schedule is not cut twice.
  next_step_[1] = 19;
  Create();
  EXPECT_EQ(Last<CutAt>(1)->step, 19);
  next_step_[1] = 20;
  Create();
  EXPECT_EQ(Last<CutAt>(1)->step, 21);
}

TEST_F(SavedJobs, OfAScheduleInTimeAreCutWhenItIsTime) {
  JobSpec job = TwoTensors(2);
  job.settings.checkpoint_every.seconds = 60;
  BeginJob(job);
  next_step_[1] = 5;
  PassTimeBeating(absl::Seconds(50), {1, 10, 11});
  EXPECT_FALSE(Last<CutAt>(1).has_value());
  PassTimeBeating(absl::Seconds(15), {1, 10, 11});
  ASSERT_TRUE(Last<CutAt>(1).has_value());
  EXPECT_EQ(Last<CutAt>(1)->step, 5);
}

TEST_F(SavedJobs, AreNotWithoutAPlaceAndSaySo) {
  coordinator_ = NewCoordinator();
  JobSpec job = TwoTensors(2);
  job.settings.checkpoint_every.steps = 10;
  Announce(job);
  EXPECT_THAT(std::string(closed_.at(10).message()), HasSubstr("--checkpoint-dir"));
  closed_.clear();
  coordinator_ = NewCoordinator();
  Announce(TwoTensors(2));
  EXPECT_TRUE(Last<WorkerWelcome>(10).has_value());
  EXPECT_THAT(std::string(Create().status.message()), HasSubstr("--checkpoint-dir"));
}

TEST_F(SavedJobs, HaveTheLossScaleOfTheirStep) {
  JobSpec job = TwoTensors(2);
  job.settings.checkpoint_every.steps = 2;
  job.training.loss_scaling = {.name = "torch"};
  BeginJob(job);
  Decide(0, 1);
  Decide(1, kInfinity);
  Decide(2, kInfinity);
  Say(1, Written(2));
  const auto& keep = std::get<KeepCheckpoint>(orders_.at(0));
  EXPECT_EQ(keep.manifest.loss_scaler.scale, 32768);
  EXPECT_EQ(keep.manifest.skipped_steps, 1);
}

TEST_F(SavedJobs, KeepTheLossScaleOfTheirStepHoweverLateServersAre) {
  JobSpec job = TwoTensors(2);
  job.settings.checkpoint_every.steps = 2;
  job.training.loss_scaling = {.name = "torch"};
  BeginJob(job);
  next_step_[1] = 3;
  Create();
  ASSERT_EQ(Last<CutAt>(1)->step, 3);
  for (uint64_t step = 0; step < 3; ++step) Decide(step, 1);
  for (uint64_t step = 3; step < 60; ++step) Decide(step, step < 6 ? kInfinity : 1);
  Say(1, Written(3));
  ASSERT_EQ(orders_.size(), 1);
  EXPECT_EQ(std::get<KeepCheckpoint>(orders_[0]).manifest.loss_scaler.scale, 65536);
  // The scheduled cut was not open, and its loss scale is not kept any more.
  Say(1, Written(4));
  ASSERT_EQ(orders_.size(), 2);
  EXPECT_EQ(std::get<DiscardCheckpoint>(orders_[1]).name.step, 4);
  EXPECT_THAT(Saved().error, HasSubstr("its loss scale is no longer known"));
}

// ---- The coordinator is restarted ----

// One server finishes, and then the other reports that it finished before the restart.
TEST_F(SavedJobsOfTwoServers, GiveUpWhatSomeWroteUnderTheOldCoordinator) {
  JobSpec job = TwoTensors(2);
  job.settings.checkpoint_every.steps = 10;
  BeginOnTwo(job);
  Restart();
  ServerReturns(1, {});
  Say(10, Written(10));
  EXPECT_EQ(Saved().failed, 0u);
  ServerReturns(2, {.cut = 10});
  EXPECT_EQ(Saved().failed, 1u);
  EXPECT_THAT(Saved().error, HasSubstr("the coordinator was restarted"));
  // The next checkpoint is complete.
  Say(10, Written(20));
  Say(20, Written(20));
  EXPECT_EQ(std::get<KeepCheckpoint>(orders_.back()).manifest.name.step, 20u);
}

// The loss scale of that step is lost with the coordinator. The error must not blame a
// disk.
TEST_F(SavedJobsOfTwoServers, SayThatTheLossScaleWentWithTheCoordinator) {
  JobSpec job = TwoTensors(2);
  job.training.gradient["clip_global_norm"] = 1.0;
  job.settings.checkpoint_every.steps = 10;
  BeginOnTwo(job);
  Restart();
  ServerReturns(1, {.decided = StepDecision{.job = job_, .step = 12}});
  ServerReturns(2, {.decided = StepDecision{.job = job_, .step = 12}});
  Say(10, Written(10));
  Say(20, Written(10));
  EXPECT_EQ(Saved().failed, 1u);
  EXPECT_THAT(Saved().error, HasSubstr("the coordinator was restarted"));
}

}  // namespace
}  // namespace syncline
