#include "comm/base/failure.h"
#include "server/coordinator/coordinator_restart_test_util.h"
#include "server/coordinator/held_job.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(CoordinatorRestart, MembersComeBackAndNothingElseChanges) {
  Begin();
  Restart();
  EXPECT_EQ(coordinator_->term(), 2u);
  EXPECT_EQ(Shown().phase, JobPhase::kWaiting);
  EXPECT_THAT(Shown().reason,
              HasSubstr("server 0 (server1), server 1 (server2), worker 0"));
  ServersReturn();
  WorkerReturns(1, {.step = 7});
  EXPECT_THAT(Shown().reason, HasSubstr("worker 0"));
  WorkerReturns(0, {.step = 8});
  EXPECT_EQ(Shown().phase, JobPhase::kRunning);
  EXPECT_EQ(Shown().epoch, epoch_);
  EXPECT_EQ(Shown().step, 7u);
  EXPECT_EQ(Shown().members.size(), 2u);
  PassTimeBeating(5 * kFailureTimeout, {10, 20, 100, 101});
  for (const ConnectionId member : {10, 20, 100, 101}) {
    EXPECT_FALSE(Last<PrepareEpoch>(member).has_value());
    EXPECT_FALSE(Last<CommitEpoch>(member).has_value());
    EXPECT_FALSE(Last<EpochChanged>(member).has_value());
    EXPECT_FALSE(Last<DropJob>(member).has_value());
  }
  EXPECT_THAT(closed_, IsEmpty());
  EXPECT_EQ(Shown().phase, JobPhase::kRunning);
}

// A caller that asks for a server must not consider it gone while it may still return.
TEST_F(CoordinatorRestart, ShowsServersThatAreNotBackAsLost) {
  Begin();
  Restart();
  ServerReturns(2, {.prepared = epoch_, .committed = epoch_});
  PassTimeBeating(absl::Seconds(3), {20});
  const auto servers = coordinator_->View(now_).servers;
  ASSERT_EQ(servers.size(), 2u);
  EXPECT_EQ(servers[0].name, "server2");
  EXPECT_FALSE(servers[0].lost_for.has_value());
  EXPECT_EQ(servers[1].name, "server1");
  EXPECT_EQ(servers[1].server, welcomed_.at(1).server);
  EXPECT_EQ(servers[1].lost_for, absl::Seconds(3));
  ServerReturns(1, {.prepared = epoch_, .committed = epoch_});
  for (const ServerView& server : coordinator_->View(now_).servers) {
    EXPECT_FALSE(server.lost_for.has_value()) << server.name;
  }
}

TEST_F(CoordinatorRestart, ForgetsServersThatNoJobGoesOnWith) {
  Begin();
  Restart();
  ServerReturns(2, {.prepared = epoch_, .committed = epoch_});
  PassTimeBeating(2 * kFailureTimeout + absl::Seconds(1), {20});
  const auto servers = coordinator_->View(now_).servers;
  ASSERT_EQ(servers.size(), 1u);
  EXPECT_EQ(servers[0].name, "server2");
}

TEST_F(CoordinatorRestart, TwiceInARow) {
  Begin();
  Restart();
  ServerReturns(1, {.prepared = epoch_, .committed = epoch_});
  Restart();
  EXPECT_EQ(coordinator_->term(), 3u);
  ServersReturn();
  WorkerReturns(0);
  WorkerReturns(1);
  EXPECT_EQ(Shown().phase, JobPhase::kRunning);
  EXPECT_EQ(Shown().epoch, epoch_);
}

TEST_F(CoordinatorRestart, TellsAnEpochAgainToWhomeverMissedIt) {
  Begin();
  Restart();
  ServerReturns(1, {.prepared = epoch_, .committed = epoch_});
  WorkerReturns(0, {}, 1);
  EXPECT_FALSE(Last<EpochChanged>(100).has_value());
  servers_answer_ = false;
  ServerReturns(2, {.prepared = epoch_, .committed = epoch_ - 1});
  EXPECT_FALSE(Last<CommitEpoch>(10).has_value());
  const auto again = Last<CommitEpoch>(20);
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(again->epoch, epoch_);
  ASSERT_EQ(again->members.size(), 2u);
  EXPECT_EQ(again->members[1].session_key, 1001u);
  EXPECT_FALSE(Last<EpochChanged>(100).has_value());
  Say(20, EpochCommitted{again->job, epoch_});
  ASSERT_TRUE(Last<EpochChanged>(100).has_value());
  EXPECT_EQ(Last<EpochChanged>(100)->epoch, epoch_);
  WorkerReturns(1, {}, 1);
  ASSERT_TRUE(Last<EpochChanged>(101).has_value());
  EXPECT_EQ(Last<EpochChanged>(101)->epoch, epoch_);
}

TEST_F(CoordinatorRestart, LetsBlocksGoThatWereHeldForAChangeWhichNobodyRemembers) {
  Begin();
  Restart();
  ServerReturns(1, {.prepared = epoch_ + 1, .committed = epoch_});
  ServerReturns(2, {.prepared = epoch_, .committed = epoch_});
  EXPECT_EQ(Last<CommitEpoch>(10)->epoch, epoch_ + 2);
  EXPECT_EQ(Last<CommitEpoch>(20)->epoch, epoch_ + 2);
  EXPECT_EQ(Last<CommitEpoch>(20)->members.size(), 2u);
  WorkerReturns(0);
  EXPECT_EQ(Last<EpochChanged>(100)->epoch, epoch_ + 2);
}

TEST_F(CoordinatorRestart, DropsAWorkerThatDoesNotComeBack) {
  Begin();
  Restart();
  ServersReturn();
  WorkerReturns(0);
  PassTimeBeating(2 * kFailureTimeout - absl::Seconds(1), {10, 20, 100});
  EXPECT_EQ(Shown().epoch, epoch_);
  PassTimeBeating(absl::Seconds(3), {10, 20, 100});
  EXPECT_EQ(Last<CommitEpoch>(10)->members.size(), 1u);
  EXPECT_THAT(Last<EpochChanged>(100)->reason, HasSubstr("did not come back within 20s"));
}

TEST_F(CoordinatorRestart, FailsAJobWhoseServerDoesNotComeBack) {
  Begin();
  Restart();
  ServerReturns(1, {.prepared = epoch_, .committed = epoch_});
  WorkerReturns(0);
  PassTimeBeating(2 * kFailureTimeout + absl::Seconds(1), {10, 100});
  EXPECT_THAT(Last<JobFailed>(100)->reason,
              HasSubstr("server 1 (server2) did not come back within 20s"));
  EXPECT_THAT(records_, IsEmpty());
}

TEST_F(CoordinatorRestart, FailsAJobWhoseServerWasStartedAnewToo) {
  Begin();
  Restart();
  ServerReturns(1, {.prepared = epoch_, .committed = epoch_});
  WorkerReturns(0);
  Say(20, ServerHello{"server2", {"address"}});
  EXPECT_THAT(Last<JobFailed>(100)->reason, HasSubstr("server 1 (server2) is lost"));
  EXPECT_NE(Last<ServerWelcome>(20)->server, welcomed_.at(2).server);
  EXPECT_THAT(records_, IsEmpty());
  Restart();
  EXPECT_THAT(coordinator_->View(now_).jobs, IsEmpty());
}

TEST_F(CoordinatorRestart, FailsAJobThatItsServerDoesNotHoldAnyMore) {
  Begin();
  Restart();
  WorkerReturns(0);
  ServerHello hello = HelloOf(1, {});
  hello.held.clear();
  Say(10, hello);
  EXPECT_THAT(Last<JobFailed>(100)->reason, HasSubstr("server 0 (server1) is lost"));
}

TEST_F(CoordinatorRestart, RefusesWorkersThatAreNoMembers) {
  Begin();
  Restart();
  WorkerReturns(0, {.session_key = 5});
  EXPECT_TRUE(absl::IsAborted(closed_.at(100)));
  Say(10, Leave{});  // a connection that is not known
  ServersReturn();
  WorkerReturns(1);
  EXPECT_FALSE(closed_.contains(101));
}

TEST_F(CoordinatorRestart, ANewProcessTakesTheRankOfOneThatIsAwaited) {
  Begin();
  Restart();
  ServersReturn();
  WorkerReturns(0);
  Hello(50, 1);
  EXPECT_EQ(Last<WorkerWelcome>(50)->epoch, epoch_ + 1);
  EXPECT_EQ(Last<EpochChanged>(100)->epoch, epoch_ + 1);
  WorkerReturns(1);
  EXPECT_TRUE(absl::IsAborted(closed_.at(101)));
}

// ---- Decisions ----

JobSpec Clipped() {
  JobSpec job = TwoTensors(2);
  job.training.gradient["clip_global_norm"] = 1.0;
  job.training.loss_scaling = {.name = "torch",
                               .values = {{"init_scale", 1024}, {"growth_interval", 2}}};
  return job;
}

TEST_F(CoordinatorRestart, ADecisionThatOneServerKnowsReachesTheOthers) {
  BeginWith(Clipped());
  const uint32_t id = welcomes_[0].job;
  Say(1, BlockFigures{id, 0, 0, {kInfinity}});
  Say(2, BlockFigures{id, 1, 0, {1.0}});
  const auto decided = Last<StepDecision>(1);
  ASSERT_TRUE(decided && decided->decision.skip);
  Restart();
  ServerReturns(2, {.prepared = epoch_, .committed = epoch_});
  Say(20, BlockFigures{id, 1, 0, {1.0}});
  ServerReturns(1, {.prepared = epoch_, .committed = epoch_, .decided = decided});
  EXPECT_FALSE(Last<StepDecision>(10).has_value());
  const auto again = Last<StepDecision>(20);
  ASSERT_TRUE(again.has_value());
  EXPECT_TRUE(again->decision.skip);
  EXPECT_EQ(again->decision.loss_scale, 512);
  EXPECT_EQ(Shown().loss_scale, 512);
  EXPECT_EQ(Shown().skipped_steps, 1u);
  // The next decision uses the loss scale of the one before.
  Say(10, BlockFigures{id, 0, 1, {512.0 * 512.0 * 4}});
  Say(20, BlockFigures{id, 1, 1, {0.0}});
  EXPECT_NEAR(Last<StepDecision>(10)->decision.gradient_scale, 0.5, 1e-4);
}

TEST_F(CoordinatorRestart, ADecisionThatNobodyKnowsIsMadeAgain) {
  BeginWith(Clipped());
  const uint32_t id = welcomes_[0].job;
  Say(1, BlockFigures{id, 0, 0, {kInfinity}});
  Say(2, BlockFigures{id, 1, 0, {1.0}});
  const auto decided = Last<StepDecision>(1);
  Restart();
  ServersReturn();
  Say(10, BlockFigures{id, 0, 0, {kInfinity}});
  Say(20, BlockFigures{id, 1, 0, {1.0}});
  const auto again = Last<StepDecision>(20);
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(again->decision.skip, decided->decision.skip);
  EXPECT_EQ(again->decision.loss_scale, decided->decision.loss_scale);
  EXPECT_EQ(again->skipped, 1u);
}

// An update, an epoch or a checkpoint stores the number of decided steps while links are
// cut. The last decision is then in queues that are lost with the coordinator.
TEST_F(CoordinatorRestart, ADecisionThatWasStoredReachesThoseWhoMissedIt) {
  for (const bool one_knows : {true, false}) {
    BeginWith(Clipped());
    const uint32_t id = welcomes_[0].job;
    Say(1, BlockFigures{id, 0, 0, {1024.0 * 1024.0 * 4}});
    Say(2, BlockFigures{id, 1, 0, {1024.0 * 1024.0 * 3}});
    const auto decided = Last<StepDecision>(1);
    ASSERT_TRUE(decided && decided->decision.gradient_scale < 0.5);
    servers_answer_ = false;
    ASSERT_TRUE(Call(UpdateJob{.job = "job", .optimizer = {{"lr", 0.125}}}).status.ok());
    Restart();
    servers_answer_ = true;
    HeldJob held = {.prepared = epoch_, .committed = epoch_};
    ServerReturns(1, held);
    Say(10, BlockFigures{id, 0, 0, {1024.0 * 1024.0 * 4}});
    if (one_knows) held.decided = decided;
    ServerReturns(2, held);
    EXPECT_EQ(Last<StepDecision>(20).has_value(), !one_knows);
    const auto again = Last<StepDecision>(10);
    ASSERT_TRUE(again.has_value()) << one_knows;
    EXPECT_EQ(again->job, id);
    EXPECT_EQ(again->step, 0u);
    EXPECT_EQ(again->decision.gradient_scale, decided->decision.gradient_scale);
    EXPECT_EQ(again->decision.loss_scale, decided->decision.loss_scale);
    EXPECT_EQ(again->scaler.growth_tracker, decided->scaler.growth_tracker);
    // The next step is decided once all servers have reported it.
    Say(10, BlockFigures{id, 0, 1, {kInfinity}});
    Say(20, BlockFigures{id, 1, 1, {1.0}});
    EXPECT_EQ(Last<StepDecision>(10)->step, 1u);
    EXPECT_EQ(Last<StepDecision>(20)->step, 1u);
  }
}

TEST(JobMemory, ForgetsWhatIsDecided) {
  JobMemory memory;
  memory.Report({7, 0, 3, {1}});
  memory.Report({7, 1, 3, {2}});
  memory.Report({7, 0, 4, {3}});
  EXPECT_EQ(memory.undecided().size(), 3u);
  memory.Decide({.job = 7, .step = 3});
  ASSERT_EQ(memory.undecided().size(), 1u);
  EXPECT_EQ(memory.undecided()[0].step, 4u);
  memory.Report({7, 1, 3, {2}});
  memory.Decide({.job = 7, .step = 2});
  EXPECT_EQ(memory.undecided().size(), 1u);
  EXPECT_EQ(memory.Describe(7).decided->step, 3u);
}

// ---- Options, barriers ----

TEST_F(CoordinatorRestart, AnUpdateThatWasPromisedIsKept) {
  Begin();
  servers_answer_ = false;
  ASSERT_TRUE(Call(UpdateJob{.job = "job", .optimizer = {{"lr", 0.125}}}).status.ok());
  Restart();
  servers_answer_ = true;
  ServersReturn();
  const auto commit = Last<CommitEpoch>(10);
  ASSERT_TRUE(commit && commit->training);
  EXPECT_GT(commit->epoch, epoch_);
  EXPECT_EQ(commit->training->optimizer.options.at("lr"), 0.125);
  // The stand-in has come already, and must not come again.
  epoch_ = commit->epoch;
  Restart();
  ServersReturn();
  EXPECT_FALSE(Last<CommitEpoch>(10).has_value());
  EXPECT_EQ(Shown().learning_rate, 0.125);
}

TEST_F(CoordinatorRestart, ABarrierThatIsOverForOneIsOverForAll) {
  Begin();
  Say(10, BarrierEntered{4});
  Say(11, BarrierEntered{2});
  EXPECT_EQ(Last<BarrierReleased>(10)->barriers, 1u);
  Restart();
  ServersReturn();
  WorkerReturns(1, {.barrier = 2, .barriers = 0});
  EXPECT_FALSE(Last<BarrierReleased>(101).has_value());
  WorkerReturns(0, {.barriers = 1});
  EXPECT_EQ(Last<BarrierReleased>(101)->barrier, 2u);
  EXPECT_EQ(Last<BarrierReleased>(101)->barriers, 1u);
  EXPECT_FALSE(Last<BarrierReleased>(100).has_value());
}

TEST_F(CoordinatorRestart, ABarrierThatNobodyKnowsToBeOverIsReleasedAgain) {
  Begin();
  Restart();
  ServersReturn();
  WorkerReturns(1, {.barrier = 2});
  WorkerReturns(0, {.barrier = 4});
  EXPECT_EQ(Last<BarrierReleased>(101)->barrier, 2u);
  EXPECT_EQ(Last<BarrierReleased>(100)->barrier, 4u);
  // The worker may report the barrier of its hello once more. That is not another
  // barrier.
  Say(100, BarrierEntered{4});
  Say(101, BarrierEntered{3});
  EXPECT_EQ(Last<BarrierReleased>(101)->barrier, 2u);
  Say(100, BarrierEntered{5});
  EXPECT_EQ(Last<BarrierReleased>(101)->barrier, 3u);
}

// A newcomer would take part in barriers whose number only the old members know.
TEST_F(CoordinatorRestart, ANewWorkerWaitsUntilTheOldOnesAreBack) {
  Begin();
  Restart();
  ServersReturn();
  Hello(52, 2);
  PassTimeBeating(absl::Seconds(2), {10, 20, 52});
  EXPECT_FALSE(Last<WorkerWelcome>(52).has_value());
  EXPECT_THAT(Last<Waiting>(52)->reason, HasSubstr("waiting for worker 0"));
  WorkerReturns(0, {.barriers = 3});
  WorkerReturns(1, {.barriers = 3});
  PassTimeBeating(absl::Seconds(2), {10, 20, 52, 100, 101});
  ASSERT_TRUE(Last<WorkerWelcome>(52).has_value());
  EXPECT_EQ(Last<WorkerWelcome>(52)->barriers, 3u);
  EXPECT_EQ(Last<WorkerWelcome>(52)->members, 3u);
}

TEST_F(CoordinatorRestart, ANewWorkerWaitsNoLongerThanForTheOldOnes) {
  Begin();
  Restart();
  ServersReturn();
  Hello(52, 2);
  WorkerReturns(0);
  PassTimeBeating(2 * kFailureTimeout + absl::Seconds(1), {10, 20, 52, 100});
  ASSERT_TRUE(Last<WorkerWelcome>(52).has_value());
  EXPECT_EQ(Last<WorkerWelcome>(52)->members, 2u);
}

}  // namespace
}  // namespace syncline
