// Backups that are made beside the present one: for a move to a server that came, and for
// servers that are to end.
#include <memory>
#include <string>
#include <vector>

#include "server/coordinator/job_moves_test_util.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

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
  PassTimeBeating(2 * kFailureTimeout + absl::Seconds(1), alive_);
  EXPECT_EQ(Ordered(43).size(), 1u);
}

// Each life costs a copy, so each must last longer than the one before.
TEST_F(JobOfThree, AServerThatDiesAgainAndAgainWaitsLongerEachTime) {
  BeginCopy();
  Say(5, Disconnected{});
  Say(23, Disconnected{});
  std::erase(alive_, ConnectionId{5});
  ConnectionId life = 40;
  for (const int pause : {2, 4, 8}) {
    std::erase(alive_, life == 40 ? ConnectionId{23} : life);
    PassTimeBeating(kFailureTimeout, alive_);
    Say(++life, ServerHello{"server23", {"address"}, "sysv"});
    alive_.push_back(life);
    PassTimeBeating(pause * kFailureTimeout - absl::Seconds(2), alive_);
    EXPECT_THAT(Ordered(life), IsEmpty()) << pause;
    PassTimeBeating(absl::Seconds(3), alive_);
    EXPECT_EQ(Ordered(life).size(), 1u) << pause;
    Say(life, Disconnected{});
  }
  for (const BackupView& backup : Shown().backups) EXPECT_THAT(backup.lost, IsEmpty());
}

// ---- Servers that are to end ----

// The backup of the first place is on 23, that of the second one is still being made
// there. The server on 2, which serves both, and the one on 23 are to end.
class JobOfLeavers : public JobMoves {
 protected:
  void BothAreToEnd() {
    AttachServers(false);
    BeginJob(WithBackups());
    AttachServer(23);
    LoseOne();
    StandInsCome();
    servers_answer_ = false;
    BackedUpOn(3);
    AttachServer(24);
    Say(2, Drain{});
    ASSERT_FALSE(Last<Drained>(2).has_value());
    Say(23, Drain{});
  }
  void BackedUpOn(ConnectionId server) {
    Say(server, BackedUp{id_, Last<BackupAt>(server).value().pair.session_key});
  }
  void LastComes(ConnectionId stand_in) {
    StandInComes(stand_in, Ordered(24).back());
    Say(stand_in, JobConfigured{id_});
  }
};

TEST_F(JobOfLeavers, ABackupThatIsToEndCountsUntilAnotherOneIsComplete) {
  BothAreToEnd();
  EXPECT_FALSE(Last<Drained>(23).has_value()) << "it has the only backup";
  EXPECT_EQ(Count<BackupGone>(3), 0u);
  ASSERT_EQ(Ordered(24).size(), 1u);
  EXPECT_THAT(Shown().backups[0].lost, IsEmpty());
  EXPECT_THAT(Shown().backups[0].holder, HasSubstr("server23"));
  EXPECT_THAT(Shown().backups[0].next, HasSubstr("server24"));
  LastComes(30);
  BackedUpOn(3);
  EXPECT_EQ(Count<BackupGone>(3), 1u);
  EXPECT_THAT(Shown().backups[0].holder, HasSubstr("server24"));
  // The other one is made where it was begun, and then again elsewhere.
  BackedUpOn(2);
  Pass(absl::Seconds(1));
  EXPECT_FALSE(Last<Drained>(2).has_value());
  ASSERT_EQ(Ordered(24).size(), 2u);
  LastComes(31);
  BackedUpOn(2);
  Pass(absl::Seconds(1));
  EXPECT_TRUE(Last<Drained>(2).has_value());
  EXPECT_TRUE(Last<Drained>(23).has_value());
}

TEST_F(JobOfLeavers, AServerThatDiesMeanwhileIsReplacedByTheBackupThatItHas) {
  BothAreToEnd();
  LastComes(30);
  Say(3, Disconnected{});
  PassTimeBeating(kFailureTimeout / 2, {2, 4, 5, 6, 10, 11, 23, 24, 30});
  EXPECT_EQ(Count<TakeOver>(5), 1u);
  EXPECT_EQ(Count<DropJob>(30), 1u);
}

TEST_F(JobOfLeavers, ACopyThatFailsIsTriedAgainLater) {
  BothAreToEnd();
  StandInComes(30, Ordered(24).back());
  Say(30, ConfigureFailed{id_, absl::ResourceExhaustedError("no memory")});
  EXPECT_THAT(Shown().backups[0].lost, IsEmpty());
  Pass(kFailureTimeout);
  EXPECT_EQ(Ordered(24).size(), 1u);
  Pass(kFailureTimeout + absl::Seconds(1));
  EXPECT_EQ(Ordered(24).size(), 2u);
}

TEST_F(JobOfLeavers, AServerOfAnEarlierReleaseGivesItsBackupUpFirst) {
  feeds_two_backups_ = false;
  BothAreToEnd();
  EXPECT_EQ(Count<BackupGone>(3), 1u);
  EXPECT_THAT(Shown().backups[0].lost, HasSubstr("are being drained"));
}

TEST_F(JobOfLeavers, WithoutRoomElsewhereTheBackupStays) {
  AttachServers(false);
  BeginJob(WithBackups());
  AttachServer(23);
  LoseOne();
  StandInsCome();
  BackedUpOn(3);
  Say(24,
      ServerHello{.name = "server24", .shard_addresses = {"address"}, .memory_bytes = 1});
  Say(2, Drain{});
  Say(23, Drain{});
  EXPECT_EQ(Count<BackupGone>(3), 0u);
  EXPECT_THAT(Shown().backups[0].next, HasSubstr("has room"));
}

}  // namespace
}  // namespace syncline
