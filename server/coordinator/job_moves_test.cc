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
  TakesOver(5);
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
  // The place's new backup is on the other server. Both have the same number of places.
  EXPECT_THAT(Shown().backups[0].lost, IsEmpty());
  EXPECT_THAT(Shown().backups[0].holder, HasSubstr("server2"));
  Pass(3 * kFailureTimeout);
  EXPECT_EQ(Shown().moves, 1u);
}

// ---- The backup of the successor ----

TEST_F(JobMoves, NoStandInTakesOverBeforeTheBackupThatItWillFeedHasItsShards) {
  AttachServers();
  BeginJob(WithBackups());
  AttachServer(23);
  LoseOne();
  BackUpBoth();
  Pass(absl::Seconds(1));
  const HoldBackup hold = Ordered(2).back();
  EXPECT_THAT(Shown().backups[0].next, HasSubstr("after the move"));
  EXPECT_EQ(Last<ServerWelcome>(5)->server, hold.server);
  EXPECT_EQ(Count<TakeOver>(5), 0u);
  const size_t fed = Count<BackupAt>(3);
  SuccessorsComes(7, 2);
  EXPECT_EQ(Last<ConfigureJob>(7)->backup->sender.server, hold.server);
  EXPECT_EQ(Count<BackupAt>(3), fed) << "the present server does not feed it";
  EXPECT_EQ(Count<BackupAt>(5), 0u) << "the successor has no shards to give yet";
  Pass(absl::Seconds(1));
  EXPECT_EQ(Count<TakeOver>(5), 1u);
}

TEST_F(JobMoves, ThePlaceMovesOnceTheSuccessorHasABackup) {
  HandOver();
  const size_t changes = Count<EpochChanged>(10);
  servers_answer_ = true;
  Say(5, JobConfigured{id_, 0});
  const auto at = Last<BackupAt>(5);
  ASSERT_TRUE(at.has_value());
  EXPECT_TRUE(at->with_state);
  EXPECT_EQ(at->pair.session_key, Last<ConfigureJob>(7)->backup->session_key);
  EXPECT_EQ(Count<EpochChanged>(10), changes);
  EXPECT_EQ(Shown().moves, 0u);
  Say(5, JobConfigured{id_, 0});
  EXPECT_EQ(Count<BackupAt>(5), 1u);
  Say(5, BackedUp{id_, 12345});
  EXPECT_EQ(Shown().moves, 0u) << "of another backup";
  Say(5, BackedUp{id_, at->pair.session_key});
  EXPECT_EQ(Count<EpochChanged>(10), changes + 1);
  EXPECT_EQ(Shown().moves, 1u);
  EXPECT_THAT(Shown().backups[0].lost, IsEmpty());
}

// No step is made while the successor's backup is filled.
TEST_F(JobMoves, ACopyThatTakesLongIsNotWaitedFor) {
  HandOver();
  servers_answer_ = true;
  Say(5, JobConfigured{id_, 0});
  Pass(kFailureTimeout / 2 - absl::Seconds(2));
  EXPECT_EQ(Shown().moves, 0u);
  Pass(absl::Seconds(2));
  EXPECT_EQ(Shown().moves, 1u);
  EXPECT_THAT(Shown().backups[0].lost, HasSubstr("has taken over"));
  EXPECT_EQ(Count<DropJob>(7), 0u) << "the copy goes on";
  Say(5, BackedUp{id_, Last<BackupAt>(5)->pair.session_key});
  EXPECT_THAT(Shown().backups[0].lost, IsEmpty());
}

TEST_F(JobMoves, ACopyThatIsLostIsNotWaitedForEither) {
  HandOver();
  servers_answer_ = true;
  Say(5, JobConfigured{id_, 0});
  const uint64_t key = Last<BackupAt>(5)->pair.session_key;
  Say(5, BackupLost{id_, "of long ago", 12345});
  EXPECT_EQ(Shown().moves, 0u);
  Say(5, BackupLost{id_, "the connection to it broke", key});
  EXPECT_EQ(Last<BackupGone>(5)->session_key, key);
  EXPECT_EQ(Count<DropJob>(7), 1u);
  EXPECT_EQ(Shown().moves, 1u);
}

TEST_F(JobMoves, WithoutABackupForTheSuccessorThePlaceMovesAllTheSame) {
  AttachServers();
  BeginJob(WithBackups());
  AttachServer(23);
  LoseOne();
  BackUpBoth();
  Pass(absl::Seconds(1));
  StandInComes(7, Ordered(2).back());
  Say(7, ConfigureFailed{id_, absl::ResourceExhaustedError("no memory")});
  EXPECT_EQ(Count<BackupGone>(5) + Count<BackupGone>(3), 0u) << "nobody feeds it";
  Pass(absl::Seconds(1));
  EXPECT_EQ(Count<TakeOver>(5), 1u);
  Say(5, JobConfigured{id_, 0});
  EXPECT_EQ(Shown().moves, 1u);
}

TEST_F(JobMoves, AStandInThatDiesBeforeTheMoveTakesTheBackupForAfterItAlong) {
  AttachServers();
  BeginJob(WithBackups());
  AttachServer(23);
  LoseOne();
  BackUpBoth();
  Pass(absl::Seconds(1));
  SuccessorsComes(7, 2);
  Say(5, Disconnected{});
  PassTimeBeating(kFailureTimeout / 2, {2, 3, 6, 7, 10, 11, 23});
  EXPECT_EQ(Count<DropJob>(7), 1u);
  EXPECT_EQ(Count<BackupGone>(3), 1u);
  EXPECT_EQ(Count<TakeOver>(5), 0u);
}

// The stand-in has said already that it has all. It may have died at the same time, so it
// must be heard again.
TEST_F(JobMoves, AServerThatDiesWhileTheNextBackupIsFilledIsReplacedByWhoIsHeard) {
  HandOver();
  Say(5, JobConfigured{id_, 0});
  servers_answer_ = true;
  Say(3, Disconnected{});
  PassTimeBeating(kFailureTimeout / 2, {2, 5, 6, 7, 10, 11, 23});
  EXPECT_EQ(Shown().phase, JobPhase::kWaiting);
  beats_[5].jobs = {{.job = id_}};
  Say(5, beats_[5]);
  EXPECT_EQ(Shown().phase, JobPhase::kRunning);
  EXPECT_EQ(Count<TakeOver>(5), 1u);
  EXPECT_EQ(Count<BackupAt>(5), 1u);
  EXPECT_EQ(Shown().recoveries.count, 2u);
  EXPECT_EQ(Count<DropJob>(7), 0u);
  Say(5, BackedUp{id_, Last<BackupAt>(5)->pair.session_key});
  EXPECT_THAT(Shown().backups[0].lost, IsEmpty());
}

// ---- When nothing moves ----

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
  SuccessorsComes(7, 2);
  Pass(absl::Seconds(1));
  EXPECT_EQ(Count<TakeOver>(5), 1u);
}

TEST_F(JobMoves, WhoLeavesMeanwhileIsInTheEpochThatTellsOfTheMove) {
  HandOver();
  const size_t prepared = Count<PrepareEpoch>(2);
  Say(11, Leave{});
  EXPECT_EQ(Count<PrepareEpoch>(2), prepared);
  servers_answer_ = true;
  TakesOver(5);
  EXPECT_EQ(Count<PrepareEpoch>(2), prepared + 1);
  EXPECT_EQ(Last<EpochChanged>(10)->members, 1u);
}

// The stand-in has told nobody of a step, so the server continues where it was.
TEST_F(JobMoves, AStandInThatDiesMeanwhileIsALostBackup) {
  HandOver();
  servers_answer_ = true;
  Say(5, Disconnected{});
  PassTimeBeating(kFailureTimeout / 2, {2, 3, 6, 7, 10, 11, 23});
  EXPECT_EQ(Count<BackupGone>(3), 1u);
  EXPECT_EQ(Count<DropJob>(3), 0u);
  EXPECT_EQ(Count<DropJob>(7), 1u) << "nobody will feed it";
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
  TakesOver(5);
  EXPECT_EQ(Shown().moves, 1u);
  Say(3, BackupLost{id_, "the connection to it broke"});
  EXPECT_FALSE(Last<JobFailed>(10).has_value());
}

// A second order would find nothing to take over.
TEST_F(JobMoves, AServerThatDiesMeanwhileIsTakenOverByTheSameStandInToldOnce) {
  HandOver();
  Say(3, Disconnected{});
  PassTimeBeating(kFailureTimeout / 2, {2, 5, 6, 7, 10, 11, 23});
  EXPECT_EQ(Shown().phase, JobPhase::kWaiting);
  EXPECT_EQ(Count<TakeOver>(5), 1u);
  servers_answer_ = true;
  Say(5, JobConfigured{id_, 0});
  EXPECT_EQ(Shown().phase, JobPhase::kRunning);
  EXPECT_EQ(Shown().recoveries.count, 2u);
  EXPECT_EQ(Shown().moves, 0u);
  TakesOver(5);  // its backup waited for this
  EXPECT_THAT(Shown().backups[0].lost, IsEmpty());
}

// Late figures may contain contributions that the successor does not have.
TEST_F(JobMoves, FiguresOfTheFormerServerAreNotHeard) {
  JobSpec job = WithBackups();
  job.training.gradient = {{"clip_global_norm", 1.0}};
  HandOver(job);
  const std::vector<uint32_t> shards =
      Last<ConfigureJob>(3).value().placement->shard_of_block;
  servers_answer_ = true;
  TakesOver(5);
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
  TakesOver(5);  // and nobody answers
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
  SuccessorsComes(25, 2);
  Pass(absl::Seconds(1));
  EXPECT_EQ(Count<TakeOver>(24), 0u);
  EXPECT_EQ(Count<TakeOver>(6), 1u) << "the other place moves";
}

}  // namespace
}  // namespace syncline
