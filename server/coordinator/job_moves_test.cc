// Shares that move from a server that lives: when they move, in which order members hear
// of it, and what happens if a member dies during the move.
#include <memory>
#include <string>
#include <vector>

#include "server/coordinator/job_moves_test_util.h"

namespace syncline {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(JobMoves, TheServerThatComesGetsOneOfTheTwo) {
  HandOver();
  EXPECT_EQ(Count<TakeOver>(5), 1u);
  EXPECT_EQ(Count<TakeOver>(6), 0u) << "one at a time";
  EXPECT_EQ(Count<DropJob>(3), 0u) << "it may have to go on";
  const size_t changes = Count<EpochChanged>(10);
  servers_answer_ = true;
  Say(5, JobConfigured{id_, 0});
  EXPECT_EQ(Count<EpochChanged>(10), changes + 1);
  const auto change = Last<EpochChanged>(10).value();
  ASSERT_EQ(change.moved.size(), 1u);
  EXPECT_THAT(Last<BackupAt>(3)->addresses, ElementsAre(change.moved[0].address));
  EXPECT_EQ(change.moved[0].epoch, change.epoch);
  EXPECT_EQ(Count<DropJob>(3), 1u);
  EXPECT_EQ(Last<CommitEpoch>(5)->epoch, change.epoch);
  EXPECT_LT(Last<CommitEpoch>(3)->epoch, change.epoch)
      << "its answers are known to be old";
  EXPECT_EQ(Shown().moves, 1u);
  EXPECT_EQ(Shown().recoveries.count, 1u) << "nothing was lost at the second time";
  EXPECT_THAT(Said(EventKind::kMoved),
              ElementsAre(AllOf(HasSubstr("took the place of server"),
                                HasSubstr("which handed it over"))));
  EXPECT_THAT(Shown().backups[0].lost, HasSubstr("has taken over"));
  // The place's new backup is on the other server, and then both have the same number of
  // places.
  Pass(absl::Seconds(1));
  ASSERT_TRUE(Last<HoldBackup>(2).has_value());
  EXPECT_EQ(Last<HoldBackup>(2)->server, Shown().backups[0].server);
  StandInComes(24, *Last<HoldBackup>(2));
  Say(5, BackedUp{id_, Last<BackupAt>(5).value().pair.session_key});
  Pass(3 * kFailureTimeout);
  EXPECT_EQ(Shown().moves, 1u);
  EXPECT_THAT(Shown().backups[0].lost, IsEmpty());
}

TEST_F(JobMoves, WhereTheCoordinatorIsToldSoNothingMoves) {
  HandOver(WithBackups(), false);
  Pass(kFailureTimeout);
  EXPECT_EQ(Count<TakeOver>(5) + Count<TakeOver>(6), 0u);
}

// An earlier move would leave a place without a copy for longer.
TEST_F(JobMoves, NothingMovesBeforeEveryPlaceHasItsBackup) {
  AttachServers();
  BeginJob(WithBackups());
  AttachServer(23);
  LoseOne();
  StandInsCome();
  Say(3, BackedUp{id_, Last<BackupAt>(3).value().pair.session_key});
  Pass(kFailureTimeout);
  EXPECT_EQ(Count<TakeOver>(5) + Count<TakeOver>(6), 0u);
}

TEST_F(JobMoves, WhileAServerIsAboutToEndNothingMoves) {
  AttachServers();
  BeginJob(WithBackups());
  AttachServer(23);
  LoseOne();
  AttachServer(24);
  Say(24, Drain{});
  BackUpBoth();
  Pass(absl::Seconds(2));
  EXPECT_EQ(Count<TakeOver>(5) + Count<TakeOver>(6), 0u);
  Say(24, Leave{});
  Pass(absl::Seconds(1));
  EXPECT_EQ(Count<TakeOver>(5), 1u);
}

TEST_F(JobMoves, WhoLeavesMeanwhileIsInTheEpochThatTellsOfTheMove) {
  HandOver();
  const size_t prepared = Count<PrepareEpoch>(2);
  Say(11, Leave{});
  EXPECT_EQ(Count<PrepareEpoch>(2), prepared);
  servers_answer_ = true;
  Say(5, JobConfigured{id_, 0});
  EXPECT_EQ(Count<PrepareEpoch>(2), prepared + 1);
  EXPECT_EQ(Last<EpochChanged>(10)->members, 1u);
}

// The stand-in has told nobody of a step, so the server continues where it was.
TEST_F(JobMoves, AStandInThatDiesMeanwhileIsALostBackup) {
  HandOver();
  servers_answer_ = true;
  Say(5, Disconnected{});
  PassTimeBeating(kFailureTimeout / 2, {2, 3, 6, 10, 11, 23});
  EXPECT_EQ(Count<BackupGone>(3), 1u);
  EXPECT_EQ(Count<DropJob>(3), 0u);
  EXPECT_FALSE(Last<JobFailed>(10).has_value());
  EXPECT_EQ(Shown().phase, JobPhase::kRunning);
  EXPECT_EQ(Shown().moves, 0u);
  EXPECT_THAT(Said(EventKind::kMoved), ElementsAre(HasSubstr("keeps its place")));
  // Members come and go again.
  const size_t changes = Count<EpochChanged>(10);
  Say(11, Leave{});
  EXPECT_EQ(Count<EpochChanged>(10), changes + 1);
}

TEST_F(JobMoves, AStandInThatCannotIsALostBackup) {
  HandOver();
  Say(5, ConfigureFailed{id_, absl::DataLossError("differs after step 5")});
  EXPECT_EQ(Count<BackupGone>(3), 1u);
  EXPECT_FALSE(Last<JobFailed>(10).has_value());
  Say(5, JobConfigured{id_, 0});  // too late: it is ignored
  EXPECT_EQ(Shown().moves, 0u);
}

TEST_F(JobMoves, AStandInThatIsBehindTheWorkersIsALostBackup) {
  HandOver();
  beats_[10].step = beats_[11].step = 9;
  Pass(absl::Seconds(1));
  Say(5, JobConfigured{id_, 5});
  EXPECT_EQ(Count<BackupGone>(3), 1u);
  EXPECT_THAT(Said(EventKind::kMoved), ElementsAre(HasSubstr("it ends at step 5")));
  EXPECT_FALSE(Last<JobFailed>(10).has_value());
  EXPECT_EQ(Shown().moves, 0u);
}

TEST_F(JobMoves, OneThatTakesTooLongIsGivenUp) {
  HandOver();
  Pass(kFailureTimeout);
  EXPECT_EQ(Count<BackupGone>(3), 1u);
  EXPECT_EQ(Count<DropJob>(5), 1u);
  EXPECT_THAT(Said(EventKind::kMoved),
              ElementsAre(HasSubstr("did not take over within")));
}

// The stand-in has closed the connection itself, so its backup is not lost.
TEST_F(JobMoves, ThatTheServerHearsItsBackupNoMoreChangesNothing) {
  HandOver();
  Say(3, BackupLost{id_, "the connection to it broke"});
  EXPECT_EQ(Count<BackupGone>(3), 0u);
  servers_answer_ = true;
  Say(5, JobConfigured{id_, 0});
  EXPECT_EQ(Shown().moves, 1u);
  Say(3, BackupLost{id_, "the connection to it broke"});
  EXPECT_FALSE(Last<JobFailed>(10).has_value());
}

// A second order would find nothing to take over.
TEST_F(JobMoves, AServerThatDiesMeanwhileIsTakenOverByTheSameStandInToldOnce) {
  HandOver();
  Say(3, Disconnected{});
  PassTimeBeating(kFailureTimeout / 2, {2, 5, 6, 10, 11, 23});
  EXPECT_EQ(Shown().phase, JobPhase::kWaiting);
  EXPECT_EQ(Count<TakeOver>(5), 1u);
  servers_answer_ = true;
  Say(5, JobConfigured{id_, 0});
  EXPECT_EQ(Shown().phase, JobPhase::kRunning);
  EXPECT_EQ(Shown().recoveries.count, 2u);
  EXPECT_EQ(Shown().moves, 0u);
}

// Late figures may contain contributions that the successor does not have.
TEST_F(JobMoves, FiguresOfTheFormerServerAreNotHeard) {
  JobSpec job = WithBackups();
  job.training.gradient = {{"clip_global_norm", 1.0}};
  HandOver(job);
  const std::vector<uint32_t> shards =
      Last<ConfigureJob>(3).value().placement->shard_of_block;
  servers_answer_ = true;
  Say(5, JobConfigured{id_, 0});
  for (const ConnectionId server : {3, 2}) {
    for (uint32_t block = 0; block < shards.size(); ++block) {
      if ((shards[block] == 0) != (server == 3)) continue;
      Say(server, BlockFigures{id_, block, 0, {1.0}});
    }
  }
  EXPECT_FALSE(Last<StepDecision>(2).has_value());
  for (uint32_t block = 0; block < shards.size(); ++block) {
    if (shards[block] == 0) Say(5, BlockFigures{id_, block, 0, {1.0}});
  }
  EXPECT_TRUE(Last<StepDecision>(2).has_value());
  EXPECT_FALSE(Last<StepDecision>(3).has_value());
}

// The move is stored first, so that the next coordinator knows the new server.
TEST_F(JobMoves, ACoordinatorThatComesBackTellsTheFormerServer) {
  HandOver();
  const ServerWelcome former = Last<ServerWelcome>(3).value();
  const uint64_t epoch = Last<CommitEpoch>(3).value().epoch;
  Say(5, JobConfigured{id_, 0});  // and nobody answers
  coordinator_ = std::make_unique<Coordinator>(CoordinatorOptions{
      .timeouts = Timeouts::Derive(kFailureTimeout), .expected_servers = 2});
  ASSERT_TRUE(coordinator_->Restore({state_, records_}, specs_.reader()).ok());
  told_.clear();
  Take(coordinator_->Apply(Start{}, now_));
  Say(33, ServerHello{.name = "stand_in",
                      .shard_addresses = {"memory"},
                      .identity = ServerIdentity{former.server, former.incarnation},
                      .held = {{.job = id_, .prepared = epoch, .committed = epoch}}});
  EXPECT_EQ(Count<DropJob>(33), 1u);
}

// A hand-over that failed is not tried again, though the backup is made there again: no
// other server could hold it.
TEST_F(JobMoves, AServerThatDidNotTakeAPlaceOverIsNotAskedAgain) {
  HandOver();
  Say(5, ConfigureFailed{id_, absl::DataLossError("differs after step 5")});
  PassTimeBeating(kFailureTimeout, {2, 3, 6, 10, 11, 23});
  EXPECT_EQ(Ordered(23).size(), 3u);
  servers_answer_ = true;
  StandInComes(24, Ordered(23).back());
  Say(3, BackedUp{id_, Last<BackupAt>(3).value().pair.session_key});
  EXPECT_THAT(Shown().backups[0].lost, IsEmpty());
  Pass(absl::Seconds(1));
  EXPECT_EQ(Count<TakeOver>(24), 0u);
  EXPECT_EQ(Count<TakeOver>(6), 1u) << "the other place moves";
}

}  // namespace
}  // namespace syncline
