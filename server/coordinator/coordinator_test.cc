// Tests of the coordinator with members and times set by hand: who is told what, and
// when.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "comm/base/failure.h"
#include "server/coordinator/coordinator_test_util.h"

namespace syncline {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST_F(CoordinatorTest, SaysWhoIsMissingUntilAllAreThere) {
  AttachServer(1);
  Hello(10, 0);
  ASSERT_TRUE(Last<Waiting>(10).has_value());
  EXPECT_THAT(Last<Waiting>(10)->reason, HasSubstr("waiting for worker 2 of 2"));
  EXPECT_FALSE(Last<WorkerWelcome>(10).has_value());
  Hello(11, 1);
  ASSERT_TRUE(Last<WorkerWelcome>(10).has_value());
  ASSERT_TRUE(Last<WorkerWelcome>(11).has_value());
}

// After `syncline run --servers 0` the workers would wait forever.
TEST_F(CoordinatorTest, WithoutServersWhoWantsSomeIsRefused) {
  coordinator_ = std::make_unique<Coordinator>(
      CoordinatorOptions{Timeouts::Derive(kFailureTimeout), 0});
  Hello(10, 0, 1);
  EXPECT_EQ(FailureOf(closed_[10]), Failure::kJobRefused);
  EXPECT_THAT(std::string(closed_[10].message()),
              AllOf(HasSubstr("job 'job' needs servers"), HasSubstr("--servers 1")));
  AttachServer(1);  // a server is started after all
  Hello(11, 0, 1);
  EXPECT_TRUE(Last<WorkerWelcome>(11).has_value());
}

TEST_F(CoordinatorTest, AHelloTellsTheNewcomerAloneAndATickTheOthers) {
  constexpr uint32_t kWorkers = 50;
  for (uint32_t rank = 0; rank + 1 < kWorkers; ++rank) Hello(100 + rank, rank, kWorkers);
  for (uint32_t rank = 0; rank + 1 < kWorkers; ++rank) {
    EXPECT_EQ(told_[100 + rank].size(), 1u) << "rank " << rank;
  }
  PassTime(absl::Seconds(1));
  PassTime(absl::Milliseconds(500));
  EXPECT_EQ(told_[100].size(), 2u) << "at most once a second";
  EXPECT_THAT(Last<Waiting>(100)->reason, HasSubstr("(missing: rank 49)"));
}

TEST_F(CoordinatorTest, WorkersOfAJobThatBeginsHearNothingOfWaiting) {
  AttachServer(1);
  AttachServer(2);  // more than it waits for
  Hello(10, 0, 1);
  EXPECT_TRUE(Last<WorkerWelcome>(10).has_value());
  EXPECT_FALSE(Last<Waiting>(10).has_value());
}

TEST_F(CoordinatorTest, ManyDeathsAreToldInAFewWords) {
  constexpr uint32_t kWorkers = 1000;
  AttachServer(1);
  std::vector<ConnectionId> alive = {1};
  for (uint32_t rank = 0; rank < kWorkers; ++rank) Hello(100 + rank, rank, kWorkers);
  for (uint32_t rank = 0; rank < kWorkers / 2; ++rank) alive.push_back(100 + rank);
  for (uint32_t rank = kWorkers / 2; rank < kWorkers; ++rank)
    Say(100 + rank, Disconnected{});
  PassTimeBeating(absl::Seconds(3), alive);
  ASSERT_EQ(Last<CommitEpoch>(1)->members.size(), kWorkers / 2);
  const std::string reason = Last<EpochChanged>(100)->reason;
  EXPECT_THAT(reason, HasSubstr("worker 500 (worker500): its connection broke"));
  EXPECT_THAT(reason, HasSubstr("; and 497 others"));
  EXPECT_LT(reason.size(), 300u);
}

TEST_F(CoordinatorTest, RefusesNamesThatCannotBeShown) {
  AttachServer(1);
  const auto refused = [&](ConnectionId connection) {
    const auto closed = closed_.find(connection);
    if (closed == closed_.end()) return std::string("taken");
    EXPECT_EQ(closed->second.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_LT(closed->second.message().size(), 1100);
    return std::string(closed->second.message());
  };
  JobSpec job = TwoTensors(1);
  job.name = "a\nb\x1b[31m";
  SayHello(10, job, {.name = "w"});
  EXPECT_THAT(refused(10), HasSubstr("a job's name 'a\\x0ab\\x1b[31m'"));
  job.name = "job";
  SayHello(11, job, {.name = std::string(3 << 20, 'w')});
  EXPECT_THAT(refused(11), HasSubstr("a worker's name must have"));
  SayHello(12, job, {.run_id = "r\r", .name = "w"});
  EXPECT_THAT(refused(12), HasSubstr("a run id 'r\\x0d'"));
  job.settings.push_codec = std::string(1 << 20, '\x02');
  SayHello(13, job, {.name = "w"});
  EXPECT_THAT(refused(13), HasSubstr("push_codec: codec '\\x02\\x02"));
  Say(14, ServerHello{"s\x1b", {"address"}, "sysv"});
  EXPECT_THAT(refused(14), HasSubstr("a server's name"));
  Say(15, ServerHello{"s", {"address"}, "\xff"});
  EXPECT_THAT(refused(15), HasSubstr("lanes"));
  Say(16, ServerHello{"s", {"address"}, "sysv", "\x1b"});
  EXPECT_THAT(refused(16), HasSubstr("reason for its lanes"));
  EXPECT_THAT(Call(UpdateJob{.job = "x\n"}).status.message(),
              HasSubstr("no job 'x\\x0a'"));
}

TEST_F(CoordinatorTest, ShowsTheModelWithoutTheBooksOfItsSampler) {
  JobSpec job = TwoTensors(1);
  job.tensors.push_back({.name = kSamplersBooks, .shape = {1000}});
  job.settings.push_codec = absl::StrCat("fp32@", kSamplersBooks, ";topk:ratio=0.01");
  job.settings.publish_codec = absl::StrCat("fp32@", kSamplersBooks, ";bf16");
  AttachServer(1);
  SayHello(10, job, {.rank = 0, .name = "w"});
  const JobView shown = coordinator_->View(now_).jobs.at(0);
  EXPECT_EQ(shown.parameters, 112u);
  EXPECT_EQ(shown.push_codec, "topk:ratio=0.01");
  EXPECT_EQ(shown.publish_codec, "bf16");
  Say(10, Leave{});
  EXPECT_EQ(coordinator_->View(now_).jobs.at(0).parameters, 112u) << "it is over";
}

TEST_F(CoordinatorTest, WaitsForServersToo) {
  Hello(10, 0, 1);
  EXPECT_THAT(Last<Waiting>(10)->reason,
              AllOf(HasSubstr("waiting for server 1 of 1"),
                    HasSubstr("'syncline serve --role server' starts one")));
  AttachServer(1);
  EXPECT_TRUE(Last<WorkerWelcome>(10).has_value());
}

TEST_F(CoordinatorTest, LowestRankOfTheFirstEpochSeeds) {
  Begin();
  EXPECT_TRUE(Last<WorkerWelcome>(10)->seeder);
  EXPECT_FALSE(Last<WorkerWelcome>(11)->seeder);
  EXPECT_EQ(Last<WorkerWelcome>(11)->first_step, 0u);
  EXPECT_EQ(Last<CommitEpoch>(1)->members.size(), 2u);
}

TEST_F(CoordinatorTest, JoinerBeginsAtTheFirstStepThatNoServerHasCompleted) {
  Take(coordinator_->Apply(Tick{}, now_));
  AttachServer(1);
  AttachServer(2);
  Hello(10, 0, 1);
  next_step_ = {{1, 41}, {2, 42}};
  Hello(12, 7, 1);
  ASSERT_TRUE(Last<WorkerWelcome>(12).has_value());
  EXPECT_EQ(Last<WorkerWelcome>(12)->first_step, 42u);
  EXPECT_FALSE(Last<WorkerWelcome>(12)->seeder);
  EXPECT_EQ(Last<EpochChanged>(10)->members, 2u);
}

TEST_F(CoordinatorTest, WhatHappensDuringAChangeGoesIntoTheNext) {
  Begin();
  servers_answer_ = false;
  Hello(12, 2);
  const PrepareEpoch prepare = *Last<PrepareEpoch>(1);
  Say(10, Leave{});
  EXPECT_EQ(Last<PrepareEpoch>(1)->epoch, prepare.epoch) << "one change at a time";
  Say(1, EpochPrepared{prepare.job, prepare.epoch - 1, 99});  // of an earlier change
  EXPECT_NE(Last<CommitEpoch>(1)->epoch, prepare.epoch);
  servers_answer_ = true;
  Say(1, EpochPrepared{prepare.job, prepare.epoch, 5});
  EXPECT_EQ(Last<WorkerWelcome>(12)->first_step, 5u);
  EXPECT_EQ(Last<CommitEpoch>(1)->members.size(), 2u);
}

TEST_F(CoordinatorTest, SilentWorkerIsDroppedAndToldWhy) {
  Begin();
  PassTimeBeating(absl::Seconds(7), {1, 10});
  ASSERT_TRUE(closed_.contains(11));
  EXPECT_TRUE(absl::IsAborted(closed_[11]));
  EXPECT_THAT(std::string(closed_[11].message()), HasSubstr("no heartbeat for 6s"));
  EXPECT_EQ(Last<CommitEpoch>(1)->members.size(), 1u);
  EXPECT_FALSE(closed_.contains(10));
}

TEST_F(CoordinatorTest, BrokenConnectionIsForgivenWhenTheRankComesBack) {
  Begin();
  const uint32_t before = Last<WorkerWelcome>(11)->incarnation;
  Say(11, Disconnected{});
  Hello(12, 1);
  ASSERT_TRUE(Last<WorkerWelcome>(12).has_value());
  EXPECT_GT(Last<WorkerWelcome>(12)->incarnation, before);
}

TEST_F(CoordinatorTest, BrokenConnectionIsADeathAfterAQuarterOfTheFailureTimeout) {
  Begin();
  Say(11, Disconnected{});
  PassTimeBeating(absl::Seconds(2), {1, 10});
  EXPECT_EQ(Last<CommitEpoch>(1)->members.size(), 2u);
  PassTimeBeating(absl::Seconds(2), {1, 10});
  EXPECT_EQ(Last<CommitEpoch>(1)->members.size(), 1u);
  EXPECT_THAT(std::string(closed_[11].message()), HasSubstr("was not restored"));
}

TEST_F(CoordinatorTest, TakenRankOtherRunAndOtherTensorsAreRefused) {
  Begin();
  Hello(12, 1);
  EXPECT_EQ(FailureOf(closed_[12]), Failure::kJobRefused);
  SayHello(13, TwoTensors(2), {.rank = 5, .run_id = "other", .name = "x"});
  EXPECT_EQ(FailureOf(closed_[13]), Failure::kJobRefused);
  JobSpec other = TwoTensors(2);
  other.tensors[1].shape = {4, 3};
  SayHello(14, other, {.rank = 5, .run_id = "run", .name = "x"});
  EXPECT_THAT(std::string(closed_[14].message()),
              HasSubstr("tensor 'b' has shape [3, 4]"));
  EXPECT_FALSE(closed_.contains(11)) << "nobody else is disturbed";
}

TEST_F(CoordinatorTest, InvalidJobsAreRefusedAndLeaveNothing) {
  JobSpec bad = TwoTensors(1);
  bad.settings.push_codec = "bf17";
  SayHello(10, bad, {.name = "x"});
  EXPECT_THAT(std::string(closed_[10].message()), HasSubstr("did you mean 'bf16'"));
  bad = TwoTensors(1);
  bad.tensors[1].name = "a";
  SayHello(11, bad, {.name = "x"});
  EXPECT_TRUE(absl::IsInvalidArgument(closed_[11]));
  bad = TwoTensors(1);
  bad.settings.push_codec = "dgc:min_elements=0,vectors=1";
  bad.training.optimizer = {.name = "sgd", .options = {{"momentum", 0.9}}};
  SayHello(12, bad, {.name = "x"});
  EXPECT_THAT(std::string(closed_[12].message()),
              HasSubstr("the optimizer must be sgd with momentum=0"));
  bad.training.mode.name = "asp";
  bad.training.optimizer.options.insert({{"nesterov", 1}, {"momentum_every", 4}});
  SayHello(15, bad, {.name = "x"});
  EXPECT_THAT(std::string(closed_[15].message()),
              HasSubstr("the optimizer must be sgd with momentum=0"));
  bad.training.mode = {};
  bad.settings.push_codec = "onebit:min_elements=0,vectors=1";
  bad.training.optimizer = {.name = "sophia"};
  SayHello(13, bad, {.name = "x"});
  EXPECT_THAT(std::string(closed_[13].message()),
              HasSubstr("needs whole Hessian estimates"));
  bad.settings.push_codec = "blocks@nothing*;bf16";
  SayHello(14, bad, {.name = "x"});
  EXPECT_THAT(std::string(closed_[14].message()), HasSubstr("nothing*"));
  EXPECT_TRUE(coordinator_->View(now_).jobs.empty());
}

TEST_F(CoordinatorTest, LastLeaverEndsTheJobAndFreesItsName) {
  Begin();
  Say(10, Leave{});
  EXPECT_TRUE(closed_[10].ok());
  Say(11, Leave{});
  ASSERT_TRUE(Last<DropJob>(1).has_value());
  const uint32_t first = Last<WorkerWelcome>(10)->job;
  Hello(20, 0, 1);
  ASSERT_TRUE(Last<WorkerWelcome>(20).has_value());
  EXPECT_NE(Last<WorkerWelcome>(20)->job, first);
}

TEST_F(CoordinatorTest, LostServerFailsItsJobs) {
  Begin();
  Say(1, Disconnected{});
  EXPECT_FALSE(closed_.contains(10)) << "it may come back";
  PassTimeBeating(absl::Seconds(3), {10, 11});
  EXPECT_EQ(FailureOf(closed_[10]), Failure::kRetryable);
  EXPECT_THAT(Last<JobFailed>(11)->reason, HasSubstr("server 0 (server1) is lost"));
  EXPECT_EQ(coordinator_->View(now_).jobs[0].phase, JobPhase::kFailed);
}

TEST_F(CoordinatorTest, BarrierOpensWhenAllMembersAreInOrGone) {
  Begin();
  Say(10, BarrierEntered{3});
  EXPECT_FALSE(Last<BarrierReleased>(10).has_value());
  Say(11, BarrierEntered{0});
  EXPECT_EQ(Last<BarrierReleased>(10)->barrier, 3u);
  EXPECT_EQ(Last<BarrierReleased>(11)->barrier, 0u);
  Say(10, BarrierEntered{4});
  Say(11, Leave{});
  EXPECT_EQ(Last<BarrierReleased>(10)->barrier, 4u);
}

TEST_F(CoordinatorTest, NoBarrierIsOverWhileNobodyIsThere) {
  Begin();
  Say(10, Disconnected{});
  Say(11, Disconnected{});
  PassTime(absl::Seconds(5));
  Hello(12, 0);
  Hello(13, 1);
  ASSERT_TRUE(Last<WorkerWelcome>(12).has_value());
  EXPECT_EQ(Last<WorkerWelcome>(12)->barriers, 0u);
}

TEST_F(CoordinatorTest, DecisionComesWhenAllBlocksHaveReported) {
  AttachServer(1);
  JobSpec job = TwoTensors(1);
  job.training.gradient = {{"clip_global_norm", 1.0}};
  job.training.nonfinite_steps = NonfiniteSteps::kSkip;
  SayHello(10, job, {.name = "x"});
  const uint32_t id = Last<WorkerWelcome>(10)->job;
  Say(1, BlockFigures{id, 1, 0, {9.0}});
  Say(1, BlockFigures{id, 1, 0, {9.0}});  // a repetition counts once
  EXPECT_FALSE(Last<StepDecision>(1).has_value());
  Say(1, BlockFigures{id, 0, 0, {16.0}});
  EXPECT_FLOAT_EQ(Last<StepDecision>(1)->decision.gradient_scale, 1.0 / (5.0 + 1e-6));
  EXPECT_EQ(coordinator_->View(now_).jobs.at(0).gradient_norm, 5.0);
  Say(1, BlockFigures{id, 0, 1, {1.0}});
  Say(1, BlockFigures{id, 1, 1, {kInfinity}});
  EXPECT_TRUE(Last<StepDecision>(1)->decision.skip);
  EXPECT_EQ(coordinator_->View(now_).jobs.at(0).gradient_norm, 5.0) << "of a finite step";
}

TEST_F(CoordinatorTest, LossScaleAndSkipsFollowTheFiguresOfAllBlocks) {
  AttachServer(1);
  JobSpec job = TwoTensors(1);
  job.training.loss_scaling = {.name = "torch", .values = {{"growth_interval", 1}}};
  job.training.gradient = {{"clip_global_norm", 1.0}};
  SayHello(10, job, {.name = "x"});
  const uint32_t id = Last<WorkerWelcome>(10)->job;
  Say(1, BlockFigures{id, 0, 0, {kInfinity}});
  Say(1, BlockFigures{id, 1, 0, {1.0}});
  EXPECT_TRUE(Last<StepDecision>(1)->decision.skip);
  EXPECT_EQ(Last<StepDecision>(1)->decision.loss_scale, 32768);
  // Contributions are scaled: a norm of 2 arrives as 2 * 32768.
  const double scaled = 2.0 * 32768;
  Say(1, BlockFigures{id, 0, 1, {scaled * scaled}});
  Say(1, BlockFigures{id, 1, 1, {0.0}});
  EXPECT_FALSE(Last<StepDecision>(1)->decision.skip);
  EXPECT_NEAR(Last<StepDecision>(1)->decision.gradient_scale, 0.5, 1e-6);
  EXPECT_EQ(Last<StepDecision>(1)->decision.loss_scale, 65536);
  const JobView view = coordinator_->View(now_).jobs.at(0);
  EXPECT_EQ(view.loss_scale, 65536);
  EXPECT_EQ(view.skipped_steps, 1u);
  EXPECT_EQ(view.gradient_norm, 2.0) << "without the loss scale";
}

TEST_F(CoordinatorTest, NewOptionsComeWithAnEpochAndHoldFromOneStepOn) {
  Begin();
  const uint64_t epoch = Last<CommitEpoch>(1)->epoch;
  next_step_[1] = 17;
  const CallAnswer answer = Call(UpdateJob{.job = "job", .optimizer = {{"lr", 0.25}}});
  ASSERT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.changed.epoch, epoch + 1);
  const CommitEpoch commit = *Last<CommitEpoch>(1);
  EXPECT_EQ(commit.epoch, epoch + 1);
  EXPECT_EQ(commit.training_from, 17u);
  EXPECT_EQ(commit.training->optimizer.options.at("lr"), 0.25);
  EXPECT_EQ(coordinator_->View(now_).jobs.at(0).learning_rate, 0.25);
  EXPECT_THAT(answer.changed.changes, testing::ElementsAre("lr from 0.001 to 0.25"));
  EXPECT_THAT(Call(UpdateJob{.job = "job", .optimizer = {{"lr", 0.25}}}).changed.changes,
              testing::IsEmpty());
  const double near = std::nextafter(0.25, 1);
  EXPECT_THAT(Call(UpdateJob{.job = "job", .optimizer = {{"lr", near}}}).changed.changes,
              testing::ElementsAre("lr from 0.25 to 0.25000000000000006"));
}

TEST_F(CoordinatorTest, BadNewOptionsAreRefusedAndTheOldOnesStay) {
  Begin();
  const double before = coordinator_->View(now_).jobs.at(0).learning_rate;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const OptionValues& bad :
       {OptionValues{{"lr", nan}}, OptionValues{{"lr", -1}}, OptionValues{{"lrr", 1}},
        OptionValues{{"momentum", 0.9}}}) {  // momentum needs another optimizer state
    EXPECT_EQ(Call(UpdateJob{.job = "job", .optimizer = bad}).status.code(),
              absl::StatusCode::kInvalidArgument)
        << bad.begin()->first;
  }
  EXPECT_EQ(Call(UpdateJob{.job = "jop"}).status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(coordinator_->View(now_).jobs.at(0).learning_rate, before);
  EXPECT_EQ(Last<PrepareEpoch>(1)->epoch, Last<CommitEpoch>(1)->epoch) << "no new epoch";
}

TEST_F(CoordinatorTest, ShowsTheMeanLossOfTheLatestStepThatWasReported) {
  Begin();
  EXPECT_FALSE(coordinator_->View(now_).jobs.at(0).loss.has_value());
  Say(10, LossReport{.step = 4, .loss = 1.0, .samples = 1});
  Say(11, LossReport{.step = 4, .loss = 2.0, .samples = 3});
  Say(11, LossReport{.step = 4, .loss = kInfinity, .samples = 3});
  Say(11, LossReport{.step = 3, .loss = 9.0, .samples = 3});
  const JobView view = coordinator_->View(now_).jobs.at(0);
  EXPECT_EQ(view.loss, 1.75);
  EXPECT_TRUE(view.loss_curve.empty()) << "only range tests keep all of it";
}

TEST_F(CoordinatorTest, KeepsTheLossesOfARangeTestWithTheirLearningRates) {
  AttachServer(1);
  JobSpec job = TwoTensors(1);
  job.training.optimizer.options = {{"lr", 1}};
  job.training.schedule = {
      "range_test", {{"first_factor", 1e-4}, {"last_factor", 1}, {"total_steps", 4}}};
  SayHello(10, job, {.name = "x"});
  for (uint64_t step = 0; step < 5; ++step) {
    Say(10, LossReport{.step = step, .loss = 5.0 - static_cast<double>(step)});
  }
  const auto curve = coordinator_->View(now_).jobs.at(0).loss_curve;
  ASSERT_EQ(curve.size(), 5u);
  EXPECT_NEAR(curve[2].learning_rate, 1e-2, 1e-12);
  EXPECT_EQ(curve[2].loss, 3.0);
}

TEST_F(CoordinatorTest, CountersGoOnAfterARestart) {
  Begin();
  auto again = NewCoordinator();
  ASSERT_TRUE(again->Restore({state_}, specs_.reader()).ok());
  const uint64_t epoch = Last<CommitEpoch>(1)->epoch;
  const uint32_t incarnation = Last<WorkerWelcome>(11)->incarnation;
  coordinator_ = std::move(again);
  told_.clear();
  Begin();
  EXPECT_GT(Last<CommitEpoch>(1)->epoch, epoch);
  EXPECT_GT(Last<WorkerWelcome>(10)->incarnation, incarnation);
  for (const char* bad : {"", "{", "[]", "{\"version\": 7}", "{\"version\": 1}"}) {
    EXPECT_EQ(FailureOf(coordinator_->Restore({bad}, specs_.reader())),
              Failure::kStateUnusable)
        << bad;
  }
}

TEST_F(CoordinatorTest, StrangersChangeNothing) {
  Begin();
  const size_t before = told_[10].size() + told_[11].size() + told_[1].size();
  Say(99, Heartbeat{});
  Say(99, EpochPrepared{1, 1, 7});
  Say(99, Leave{});
  Say(1, BlockFigures{77, 0, 0, {1.0}});
  Say(1, EpochCommitted{1, 12345});
  Say(10, JobConfigured{1});
  EXPECT_EQ(told_[10].size() + told_[11].size() + told_[1].size(), before);
  EXPECT_TRUE(closed_.empty());
}

}  // namespace
}  // namespace syncline
