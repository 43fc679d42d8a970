// Shares that move from a server that lives: when they move, in which order members hear
// of it, and what happens if a member dies during the move.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
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

// ---- Where the backup is elsewhere ----

// Servers 0, 1 and 2 are on connections 1, 2 and 7, and their stand-ins on 3, 4 and 8.
// Server 0 dies, and the stand-in on 3, in the process of server 1, serves its place.
// Server 2 is given the backups of both places of server 1, on 9 and 14. Then a server
// comes on 23.
class JobOfThree : public JobMoves {
 protected:
  void Begin() {
    AttachServers();
    AttachServer(7);
    const JobSpec job = WithBackups();
    for (const uint32_t rank : {0u, 1u}) {
      SayHello(10 + rank, job,
               {.rank = rank, .run_id = "run", .session_key = 1000 + rank});
    }
    StandInComes(3, Last<HoldBackup>(2).value());
    StandInComes(4, Last<HoldBackup>(7).value());
    StandInComes(8, Last<HoldBackup>(1).value());
    id_ = Last<WorkerWelcome>(10).value().job;
    servers_answer_ = false;
    Say(1, Disconnected{});
    Say(8, Disconnected{});
    PassTimeBeating(kFailureTimeout / 2, alive_);
    servers_answer_ = true;
    Say(3, JobConfigured{id_, 0});
    PassTimeBeating(absl::Seconds(1), alive_);
    StandInComes(9, Last<HoldBackup>(7).value());
    StandInComes(14, Last<HoldBackup>(2).value());
    Say(3, BackedUp{id_, Last<BackupAt>(3).value().pair.session_key});
    Say(7, BackedUp{id_, Last<BackupAt>(7).value().pair.session_key});
    AttachServer(23);
  }
  // A copy of the first place is being made on 5, beside the one on 9.
  void BeginCopy() {
    Begin();
    PassTimeBeating(kFailureTimeout + absl::Seconds(1), alive_);
    ASSERT_EQ(Ordered(23).size(), 1u);
    StandInComes(5, Ordered(23).front());
    alive_.push_back(5);
    servers_answer_ = false;
  }
  // Of the stand-in on that connection.
  uint64_t KeyOf(ConnectionId stand_in) const {
    return Last<ConfigureJob>(stand_in)->backup->session_key;
  }
  std::vector<ConnectionId> alive_ = {2, 3, 4, 7, 9, 14, 10, 11, 23};
};

TEST_F(JobOfThree, ItIsMadeAnewWithTheServerThatCameOnceThatIsSteady) {
  Begin();
  for (const BackupView& backup : Shown().backups) ASSERT_THAT(backup.lost, IsEmpty());
  PassTimeBeating(0.6 * kFailureTimeout, alive_);
  EXPECT_THAT(Ordered(23), IsEmpty()) << "it may be one that dies over and over";
  PassTimeBeating(0.4 * kFailureTimeout + absl::Seconds(1), alive_);
  const std::vector<HoldBackup> orders = Ordered(23);
  ASSERT_EQ(orders.size(), 1u);
  EXPECT_EQ(orders[0].server, Shown().backups[0].server);
  EXPECT_THAT(Shown().backups[0].next, HasSubstr("server 8 (server23)"));
  StandInComes(5, orders[0]);
  alive_.push_back(5);
  EXPECT_TRUE(Last<BackupAt>(3)->with_state);
  PassTimeBeating(kFailureTimeout, alive_);
  EXPECT_EQ(Ordered(23).size(), 1u) << "one at a time";
  // All the time the place has the backup that it had.
  EXPECT_THAT(Shown().backups[0].lost, IsEmpty());
  EXPECT_THAT(Shown().backups[0].holder, HasSubstr("server7"));
  EXPECT_EQ(Count<BackupGone>(3) + Count<DropJob>(9), 0u);
  servers_answer_ = false;
  Say(3, BackedUp{id_, Last<BackupAt>(3).value().pair.session_key});
  EXPECT_THAT(Shown().backups[0].holder, HasSubstr("server23"));
  EXPECT_EQ(Last<BackupGone>(3)->session_key, KeyOf(9));
  EXPECT_EQ(Count<DropJob>(9), 1u);
  PassTimeBeating(absl::Seconds(1), alive_);
  EXPECT_EQ(Count<TakeOver>(5), 1u);
  servers_answer_ = true;
  Say(5, JobConfigured{id_, 0});
  EXPECT_EQ(Shown().moves, 1u);
}

TEST_F(JobOfThree, AServerThatDiesMeanwhileIsReplacedByTheBackupThatItHas) {
  BeginCopy();
  Say(3, Disconnected{});
  PassTimeBeating(kFailureTimeout / 2, {2, 4, 5, 7, 9, 14, 10, 11, 23});
  EXPECT_EQ(Count<TakeOver>(9), 1u);
  EXPECT_EQ(Count<TakeOver>(5), 0u);
  EXPECT_EQ(Count<DropJob>(5), 1u);
  Say(3, BackedUp{id_, KeyOf(5)});  // too late
  EXPECT_EQ(Count<DropJob>(9), 0u);
  EXPECT_FALSE(Last<JobFailed>(10).has_value());
}

TEST_F(JobOfThree, ABackupThatIsLostMeanwhileIsReplacedAsSoon) {
  BeginCopy();
  Say(9, Disconnected{});
  PassTimeBeating(kFailureTimeout / 2, {2, 3, 4, 5, 7, 14, 10, 11, 23});
  EXPECT_EQ(Last<BackupGone>(3)->session_key, KeyOf(9));
  EXPECT_THAT(Shown().backups[0].lost, HasSubstr("is lost"));
  EXPECT_EQ(Count<DropJob>(5), 0u);
  const size_t gone = Count<BackupGone>(3);
  Say(3, BackedUp{id_, KeyOf(5)});
  EXPECT_THAT(Shown().backups[0].lost, IsEmpty());
  EXPECT_EQ(Count<BackupGone>(3), gone) << "there is no other one";
}

TEST_F(JobOfThree, ANewcomerThatDiesMeanwhileCostsNothing) {
  BeginCopy();
  Say(5, Disconnected{});
  Say(23, Disconnected{});
  PassTimeBeating(kFailureTimeout / 2, {2, 3, 4, 7, 9, 14, 10, 11});
  EXPECT_EQ(Last<BackupGone>(3)->session_key, KeyOf(5));
  EXPECT_EQ(Count<BackupGone>(3), 1u);
  EXPECT_EQ(Count<DropJob>(9), 0u);
  EXPECT_THAT(Shown().backups[0].lost, IsEmpty());
  EXPECT_THAT(Shown().backups[0].next, IsEmpty());
}

// Which of the two is meant decides what the server goes on with.
TEST_F(JobOfThree, ALossThatTheServerReportsIsOfTheBackupWithThatKey) {
  BeginCopy();
  Say(3, BackupLost{id_, "the connection to it broke", KeyOf(5)});
  EXPECT_EQ(Last<BackupGone>(3)->session_key, KeyOf(5));
  EXPECT_THAT(Shown().backups[0].lost, IsEmpty());
  Say(3, BackupLost{id_, "the connection to it broke", 12345});
  EXPECT_THAT(Shown().backups[0].lost, IsEmpty()) << "one of long ago";
  Say(3, BackupLost{id_, "the connection to it broke", KeyOf(9)});
  EXPECT_EQ(Last<BackupGone>(3)->session_key, KeyOf(9));
  EXPECT_THAT(Shown().backups[0].lost, HasSubstr("broke"));
}

// The server saw the connection to the old backup break before it heard that a new one is
// being made, and its release names no keys.
TEST_F(JobOfThree, ALossWithoutAKeyIsThatOfTheBackupBefore) {
  Begin();
  PassTimeBeating(kFailureTimeout + absl::Seconds(1), alive_);
  ASSERT_EQ(Ordered(23).size(), 1u);
  for (int i = 0; i < 2; ++i) {
    Say(3, BackupLost{id_, "the connection to it broke"});
    EXPECT_THAT(Shown().backups[0].lost, HasSubstr("broke"));
    EXPECT_THAT(Shown().backups[0].next, HasSubstr("being made with server 8"));
  }
  StandInComes(5, Ordered(23)[0]);
  Say(3, BackedUp{id_, Last<BackupAt>(3).value().pair.session_key});
  EXPECT_THAT(Shown().backups[0].lost, IsEmpty());
}

// It would take the order to feed a second backup for one to replace the first.
TEST_F(JobOfThree, AServerOfAnEarlierReleaseIsGivenNoSecondBackup) {
  feeds_two_backups_ = false;
  Begin();
  PassTimeBeating(3 * kFailureTimeout, alive_);
  EXPECT_THAT(Ordered(23), IsEmpty());
}

// ---- Where it failed before ----

// Both places of the server that has two are tried once each, and then no more, although
// the server that came has the fewest bytes.
TEST_F(JobOfThree, AServerOnWhichTheCopyFailedGetsNoOtherUntilItIsStartedAgain) {
  Begin();
  ConnectionId stand_in = 30;
  for (size_t tries = 1; tries <= 2; ++tries) {
    PassTimeBeating(kFailureTimeout + absl::Seconds(1), alive_);
    ASSERT_EQ(Ordered(23).size(), tries);
    StandInComes(++stand_in, Ordered(23).back());
    Say(stand_in, ConfigureFailed{id_, absl::ResourceExhaustedError("no memory")});
  }
  PassTimeBeating(40 * kFailureTimeout, alive_);
  EXPECT_EQ(Ordered(23).size(), 2u);
  for (const BackupView& backup : Shown().backups) EXPECT_THAT(backup.lost, IsEmpty());
  Say(23, Leave{});
  Say(43, ServerHello{"server23", {"address"}, "sysv"});
  alive_.push_back(43);
  PassTimeBeating(kFailureTimeout + absl::Seconds(1), alive_);
  EXPECT_EQ(Ordered(43).size(), 1u);
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
