// Backups in the memory of other servers: where they are held, which take over, and that
// an incomplete backup never takes over.
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "server/coordinator/coordinator_test_util.h"

namespace syncline {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// The servers are on connections 1 and 2 (numbers 0 and 1), their stand-ins on 3 and 4,
// and ranks 0 and 1 on 10 and 11.
class JobBackups : public CoordinatorTest {
 protected:
  void AttachServers(int servers) {
    coordinator_ = std::make_unique<Coordinator>(
        CoordinatorOptions{.timeouts = Timeouts::Derive(kFailureTimeout),
                           .expected_servers = static_cast<uint32_t>(servers)});
    Take(coordinator_->Apply(Start{}, now_));
    for (int i = 1; i <= servers; ++i) AttachServer(static_cast<ConnectionId>(i));
  }
  static JobSpec WithBackups() {
    JobSpec job = TwoTensors(2);
    job.settings.durability = "peer";
    return job;
  }
  void WorkersCome(const JobSpec& job) {
    for (const uint32_t rank : {0u, 1u}) {
      SayHello(10 + rank, job,
               {.rank = rank, .run_id = "run", .session_key = 1000 + rank});
    }
  }
  // Of that server; it says hello as the shell would let it.
  void StandInComes(ConnectionId connection, const HoldBackup& hold) {
    Say(connection, ServerHello{.name = absl::StrCat("stand_in", hold.order),
                                .shard_addresses = {absl::StrCat("memory", hold.server)},
                                .stand_in = StandInFor{hold.job, hold.server, hold.order},
                                .session_key = 77 + hold.server});
  }
  void Begin() {
    AttachServers(2);
    WorkersCome(WithBackups());
    StandInComes(3, Last<HoldBackup>(2).value());
    StandInComes(4, Last<HoldBackup>(1).value());
    id_ = Last<WorkerWelcome>(10).value().job;
  }
  void Lose(ConnectionId connection, const std::vector<ConnectionId>& alive) {
    Say(connection, Disconnected{});
    PassTimeBeating(kFailureTimeout, alive);
  }
  JobView Shown() const { return coordinator_->View(now_).jobs.at(0); }

  uint32_t id_ = 0;
};

TEST_F(JobBackups, EachServerHoldsTheOneBeforeItAndTheJobWaitsForBoth) {
  AttachServers(2);
  WorkersCome(WithBackups());
  EXPECT_EQ(Last<HoldBackup>(2)->server, 0u);
  EXPECT_EQ(Last<HoldBackup>(1)->server, 1u);
  EXPECT_FALSE(Last<WorkerWelcome>(10).has_value());
  StandInComes(3, *Last<HoldBackup>(2));
  const auto kept = Last<ConfigureJob>(3);
  ASSERT_TRUE(kept.has_value());
  EXPECT_EQ(kept->first_shard, 0u);
  EXPECT_EQ(kept->backup->sender.server, 0u);
  EXPECT_FALSE(Last<WorkerWelcome>(10).has_value());
  StandInComes(4, *Last<HoldBackup>(1));
  const auto at = Last<BackupAt>(1);
  ASSERT_TRUE(at.has_value());
  EXPECT_EQ(at->addresses, std::vector<std::string>{"memory0"});
  EXPECT_EQ(at->pair.session_key, 77u);
  EXPECT_TRUE(Last<WorkerWelcome>(10).has_value());
  EXPECT_EQ(Shown().durability, Durability::kPeer);
  ASSERT_EQ(Shown().backups.size(), 2u);
  EXPECT_THAT(Shown().backups[0].holder, HasSubstr("server 1 (server2)"));
  EXPECT_THAT(Shown().backups[0].lost, IsEmpty());
}

// A server has no records to send before it has its shards.
TEST_F(JobBackups, AServerThatTakesLongToBuildHearsOfItsBackupThen) {
  AttachServers(2);
  servers_answer_ = false;
  WorkersCome(WithBackups());
  const uint32_t job = Last<ConfigureJob>(1).value().job;
  StandInComes(3, Last<HoldBackup>(2).value());
  StandInComes(4, Last<HoldBackup>(1).value());
  for (const ConnectionId one : {3, 4, 2}) Say(one, JobConfigured{job});
  EXPECT_FALSE(Last<BackupAt>(1).has_value());
  EXPECT_FALSE(Last<PrepareEpoch>(2).has_value());
  Say(1, JobConfigured{job});
  EXPECT_TRUE(Last<BackupAt>(1).has_value());
  EXPECT_TRUE(Last<PrepareEpoch>(2).has_value());
}

TEST_F(JobBackups, AServerThatIsLostBeforeTheJobBeginsEndsItInOrder) {
  AttachServers(2);
  servers_answer_ = false;
  WorkersCome(WithBackups());
  StandInComes(3, Last<HoldBackup>(2).value());
  Lose(1, {2, 3, 10, 11});
  EXPECT_EQ(Shown().phase, JobPhase::kFailed);
  EXPECT_THAT(Shown().reason,
              HasSubstr("server 0 (server1) is lost, and the job had not"));
  // The remaining members are told, and the backups of the job are still shown.
  EXPECT_TRUE(Last<DropJob>(2).has_value());
  EXPECT_TRUE(Last<DropJob>(3).has_value());
  ASSERT_EQ(Shown().backups.size(), 2u);
  EXPECT_EQ(Shown().backups[1].server, 1u);
  EXPECT_EQ(Shown().expected_servers, 2u);
}

TEST_F(JobBackups, OneServerIsRefused) {
  AttachServers(1);
  WorkersCome(WithBackups());
  EXPECT_THAT(std::string(closed_.at(10).message()),
              AllOf(HasSubstr("there is only one server"), HasSubstr("--servers 2")));
}

TEST_F(JobBackups, ModesThatRunAheadAreRefused) {
  AttachServers(2);
  JobSpec job = WithBackups();
  job.training.mode = {.name = "ssp", .values = {{"staleness", 2}}};
  WorkersCome(job);
  EXPECT_THAT(std::string(closed_.at(10).message()), HasSubstr("needs mode bsp"));
}

TEST_F(JobBackups, AStandInThatNobodyWaitsForIsRefused) {
  Begin();
  Lose(3, {1, 2, 4, 10, 11});
  StandInComes(5, {.job = id_, .server = 0});
  EXPECT_THAT(std::string(closed_.at(5).message()),
              HasSubstr("no longer waits for this stand-in"));
}

// Other jobs are not placed on a stand-in.
TEST_F(JobBackups, StandInsServeOneJob) {
  Begin();
  JobSpec other = TwoTensors(1);
  other.name = "other";
  SayHello(20, other, {.rank = 0, .run_id = "run", .session_key = 20});
  EXPECT_EQ(Last<ConfigureJob>(1)->declared->spec.name, "other");
  EXPECT_EQ(Last<ConfigureJob>(3)->declared->spec.name, "job");
}

TEST_F(JobBackups, TheBackupOfADeadServerTakesItsPlace) {
  Begin();
  servers_answer_ = false;
  Lose(1, {2, 3, 10, 11});  // and with it the stand-in on its host
  EXPECT_TRUE(Last<TakeOver>(3).has_value());
  EXPECT_EQ(Shown().phase, JobPhase::kWaiting);
  servers_answer_ = true;
  Say(3, JobConfigured{id_, 5});
  EXPECT_EQ(Shown().phase, JobPhase::kRunning);
  const auto change = Last<EpochChanged>(10);
  ASSERT_TRUE(change.has_value());
  ASSERT_EQ(change->moved.size(), 1u);
  EXPECT_EQ(change->moved[0].address, "memory0");
  EXPECT_THAT(Shown().backups[0].lost, HasSubstr("has taken over"));
  // The backup of the other place was on the dead host.
  Lose(4, {2, 3, 10, 11});
  EXPECT_THAT(Shown().backups[1].lost, HasSubstr("server 0 (server1), which held it"));
  EXPECT_TRUE(Last<BackupGone>(2).has_value());
  EXPECT_FALSE(Last<JobFailed>(10).has_value());
}

TEST_F(JobBackups, TakeOverAlsoWhileAllWorkersAreGone) {
  Begin();
  Lose(10, {1, 2, 3, 4, 11});
  Lose(11, {1, 2, 3, 4});
  Lose(1, {2, 3});  // and with it the stand-in on its host
  EXPECT_TRUE(Last<TakeOver>(3).has_value());
  Say(3, JobConfigured{id_, 5});
  EXPECT_EQ(Shown().phase, JobPhase::kRunning);
  WorkersCome(WithBackups());
  PassTimeBeating(absl::Seconds(1), {2, 3, 10, 11});
  EXPECT_FALSE(Last<JobFailed>(10).has_value());
  EXPECT_EQ(Last<WorkerWelcome>(10)->shard_addresses->at(0), "memory0");
}

TEST_F(JobBackups, TheLossIsShownAtOnce) {
  Begin();
  Say(1, Disconnected{});
  EXPECT_EQ(Shown().phase, JobPhase::kWaiting);
  EXPECT_THAT(Shown().reason, AllOf(HasSubstr("server 0 (server1) was lost 0 s ago"),
                                    HasSubstr("its backup takes over if")));
}

TEST_F(JobBackups, WhatEndsBehindTheWorkersIsNoBackup) {
  Begin();
  beats_[10].step = beats_[11].step = 9;
  PassTimeBeating(absl::Seconds(1), {1, 2, 3, 4, 10, 11});
  servers_answer_ = false;
  Lose(1, {2, 3, 4, 10, 11});
  Say(3, JobConfigured{id_, 5});
  EXPECT_THAT(Last<JobFailed>(10)->reason,
              HasSubstr("ends at step 5, but workers are at step 9"));
}

// The loss is stored before the server hears that it may continue without a backup.
TEST_F(JobBackups, ALostBackupIsStoredAsLostFirst) {
  Begin();
  const CoordinatorOutputs outputs =
      coordinator_->Apply(FromMember{1, BackupLost{id_, "the cable broke"}}, now_);
  bool is_stored = false;
  bool was_told = false;
  for (const CoordinatorOutput& output : outputs) {
    if (const auto* record = std::get_if<StoreRecord>(&output)) {
      is_stored = record->value != nullptr &&
                  record->value->find(absl::BytesToHexString("the cable broke")) !=
                      std::string::npos;
    }
    const auto* message = std::get_if<ToMember>(&output);
    if (message != nullptr && std::holds_alternative<BackupGone>(message->body)) {
      EXPECT_TRUE(is_stored);
      was_told = true;
    }
  }
  EXPECT_TRUE(was_told);
  Take(outputs);
  EXPECT_TRUE(Last<DropJob>(3).has_value());
  Lose(1, {2, 10, 11});
  EXPECT_FALSE(Last<TakeOver>(3).has_value());
  EXPECT_THAT(Last<JobFailed>(10)->reason,
              AllOf(HasSubstr("no longer had a backup: the cable broke"),
                    HasSubstr("resume from a checkpoint")));
}

TEST_F(JobBackups, ABackupThatDiesWhileItTakesOverEndsTheJob) {
  Begin();
  servers_answer_ = false;
  Lose(1, {2, 3, 10, 11});
  Lose(3, {2, 10, 11});
  EXPECT_THAT(Last<JobFailed>(10)->reason,
              HasSubstr("is lost, and so is its backup in the memory of server 1"));
}

// ---- A new one ----

// Server 0 dies, its backup takes over, and another server is on connection 23.
class NewBackups : public JobBackups {
 protected:
  void TakeOverOnce() {
    Begin();
    AttachServer(23);
    servers_answer_ = false;
    Say(1, Disconnected{});
    PassTimeBeating(kFailureTimeout / 2, {2, 3, 4, 10, 11, 23});
    servers_answer_ = true;
    Say(3, JobConfigured{id_, 0});
    successor_ = Shown().backups[0].server;
  }
  void Pass(absl::Duration time) { PassTimeBeating(time, {2, 3, 4, 5, 10, 11, 23}); }
  BackupView First() const { return Shown().backups[0]; }
  // Restarts the coordinator from what was stored. Members return on other connections.
  void StartAnew() {
    coordinator_ = std::make_unique<Coordinator>(CoordinatorOptions{
        .timeouts = Timeouts::Derive(kFailureTimeout), .expected_servers = 2});
    ASSERT_TRUE(coordinator_->Restore({state_, records_}, specs_.reader()).ok());
    told_.clear();
    Take(coordinator_->Apply(Start{}, now_));
  }

  uint32_t successor_ = 0;
};

// The new backup is not on the host of the stand-in that took over.
TEST_F(NewBackups, ATakeOverIsFollowedByOneOnAnotherHost) {
  TakeOverOnce();
  Pass(absl::Seconds(1));
  const auto hold = Last<HoldBackup>(23);
  ASSERT_TRUE(hold.has_value());
  EXPECT_EQ(hold->server, successor_);
  EXPECT_THAT(First().lost, HasSubstr("has taken over"));
  EXPECT_THAT(First().next, HasSubstr("is being made with server 4 (server23)"));
  StandInComes(5, *hold);
  EXPECT_EQ(Last<ConfigureJob>(5)->backup->sender.server, successor_);
  const auto at = Last<BackupAt>(3);
  ASSERT_TRUE(at.has_value());
  EXPECT_TRUE(at->with_state);
  EXPECT_FALSE(First().lost.empty()) << "it does not have all yet";
  Say(3, BackedUp{id_, at->pair.session_key});
  EXPECT_THAT(First().lost, IsEmpty());
  EXPECT_THAT(First().holder, HasSubstr("server 4 (server23)"));
  // The new backup takes over in turn.
  servers_answer_ = false;
  Say(3, Disconnected{});
  PassTimeBeating(kFailureTimeout / 2, {2, 5, 10, 11, 23});
  EXPECT_TRUE(Last<TakeOver>(5).has_value());
}

TEST_F(NewBackups, UntilItHasAllADeathEndsTheJob) {
  TakeOverOnce();
  Pass(absl::Seconds(1));
  StandInComes(5, Last<HoldBackup>(23).value());
  Say(3, BackedUp{id_, 12345});  // the key of another backup
  Say(3, Disconnected{});
  PassTimeBeating(kFailureTimeout / 2, {2, 5, 10, 11, 23});
  EXPECT_FALSE(Last<TakeOver>(5).has_value());
  EXPECT_THAT(Last<JobFailed>(10)->reason, HasSubstr("a new one was being made"));
}

// Each try waits longer than the one before.
TEST_F(NewBackups, OneThatIsLostIsFollowedByTheNextAfterARest) {
  TakeOverOnce();
  Pass(absl::Seconds(1));
  StandInComes(5, Last<HoldBackup>(23).value());
  Say(5, BackupLost{id_, "no memory for that"});
  EXPECT_TRUE(Last<BackupGone>(3).has_value());
  EXPECT_TRUE(Last<DropJob>(5).has_value());
  EXPECT_FALSE(Last<JobFailed>(10).has_value());
  const uint32_t order = Last<HoldBackup>(23)->order;
  Pass(kFailureTimeout / 2);
  EXPECT_EQ(Last<HoldBackup>(23)->order, order);
  EXPECT_THAT(First().next, HasSubstr("another try follows later"));
  Pass(kFailureTimeout);
  EXPECT_GT(Last<HoldBackup>(23)->order, order);
  Say(23, ConfigureFailed{id_, absl::ResourceExhaustedError("no port is free")});
  EXPECT_FALSE(Last<JobFailed>(10).has_value());
  EXPECT_THAT(Said(EventKind::kBackup), testing::Not(IsEmpty()));
}

TEST_F(NewBackups, AStandInOfAnOlderOrderIsRefused) {
  TakeOverOnce();
  Pass(absl::Seconds(1));
  HoldBackup older = Last<HoldBackup>(23).value();
  older.order = 1000;  // like an order of an earlier coordinator
  StandInComes(5, older);
  EXPECT_THAT(std::string(closed_.at(5).message()),
              HasSubstr("no longer waits for this stand-in"));
}

// The job is over when the stand-in of its new backup becomes overdue.
TEST_F(NewBackups, AJobThatIsOverSeeksNone) {
  TakeOverOnce();
  Pass(absl::Seconds(1));
  ASSERT_TRUE(Last<HoldBackup>(23).has_value());  // and nobody comes
  Say(3, Disconnected{});
  PassTimeBeating(kFailureTimeout, {2, 23, 10, 11});
  ASSERT_EQ(Shown().phase, JobPhase::kFailed);
  JobSpec other = WithBackups();
  other.name = "other";
  for (const uint32_t rank : {0u, 1u}) {
    SayHello(20 + rank, other, {.rank = rank, .run_id = "run", .session_key = 20 + rank});
  }
  StandInComes(31, Last<HoldBackup>(23).value());
  StandInComes(32, Last<HoldBackup>(2).value());
  Say(2, BackupLost{Last<WorkerWelcome>(20).value().job, "the cable broke"});
  PassTimeBeating(DefaultPatience(kFailureTimeout) + absl::Seconds(2),
                  {2, 23, 31, 32, 20, 21});
  EXPECT_EQ(Shown().phase, JobPhase::kFailed);
}

TEST_F(NewBackups, WithoutRoomThereIsNone) {
  Begin();
  Say(2, BackupLost{id_, "the cable broke"});
  Say(1, Disconnected{});
  Lose(4, {2, 3, 10, 11});
  Pass(absl::Seconds(1));
  EXPECT_THAT(Shown().backups[1].next,
              HasSubstr("no other server is attached that stays"));
}

// Only the backup is lost. The same server holds the next one.
TEST_F(NewBackups, ALostCableIsFollowedByOneOnTheSameHost) {
  Begin();
  Say(1, BackupLost{id_, "the cable broke"});
  const uint32_t order = Last<HoldBackup>(2)->order;
  Pass(absl::Seconds(1));
  EXPECT_GT(Last<HoldBackup>(2)->order, order);
  EXPECT_EQ(Last<HoldBackup>(2)->server, 0u);
}

// ---- Servers that are to end ----

TEST_F(NewBackups, AServerWhoseBackupIsThereMayEndAtOnce) {
  Begin();
  Say(1, Drain{});
  EXPECT_TRUE(Last<Drained>(1).has_value());
  Say(1, Leave{});
  EXPECT_TRUE(Last<TakeOver>(3).has_value());
}

// The copy may be a stand-in in its process that has taken over.
TEST_F(NewBackups, AServerThatHasTheOnlyCopyWaitsForANewBackup) {
  TakeOverOnce();
  Say(2, Drain{});
  Pass(absl::Seconds(1));
  EXPECT_FALSE(Last<Drained>(2).has_value());
  const auto hold = Last<HoldBackup>(23);
  ASSERT_TRUE(hold.has_value());
  EXPECT_EQ(hold->server, successor_);
  StandInComes(5, *hold);
  Say(3, BackedUp{id_, Last<BackupAt>(3).value().pair.session_key});
  Pass(absl::Seconds(1));
  EXPECT_TRUE(Last<Drained>(2).has_value());
  EXPECT_FALSE(Last<JobFailed>(10).has_value());
}

TEST_F(NewBackups, ATakeOverIsARecoveryFromTheLossUntilTheJobGoesOn) {
  TakeOverOnce();
  const RecoveryView recoveries = Shown().recoveries;
  EXPECT_EQ(recoveries.count, 1u);
  EXPECT_EQ(recoveries.sums.at("backup").count, 1u);
  EXPECT_EQ(recoveries.sums.at("journal").count, 0u);
  EXPECT_THAT(recoveries.last, HasSubstr("server 0"));
  EXPECT_GT(recoveries.last_took, absl::ZeroDuration());
  EXPECT_LE(recoveries.last_took, kFailureTimeout);
  EXPECT_THAT(Said(EventKind::kRecovery),
              ElementsAre(AllOf(HasSubstr("after the loss of server 0"),
                                HasSubstr(" (backup)"))));
}

TEST_F(NewBackups, NothingNewGoesToAServerThatIsToEnd) {
  TakeOverOnce();
  Say(23, Drain{});
  Pass(absl::Seconds(1));
  EXPECT_TRUE(Last<Drained>(23).has_value());
  EXPECT_FALSE(Last<HoldBackup>(23).has_value());
}

// The backup of the first server is with the second, so they end one after the other.
TEST_F(NewBackups, TheSecondWaitsUntilItHasPassedOnWhatTheFirstHad) {
  Begin();
  AttachServer(23);
  Say(1, Drain{});
  EXPECT_TRUE(Last<Drained>(1).has_value());
  Say(2, Drain{});
  Pass(absl::Seconds(1));
  EXPECT_FALSE(Last<Drained>(2).has_value());
  EXPECT_FALSE(Last<DropJob>(3).has_value()) << "it is about to take over";
  Say(1, Leave{});
  EXPECT_TRUE(Last<TakeOver>(3).has_value());
  EXPECT_FALSE(Last<JobFailed>(10).has_value());
}

// The backups move before any of the two servers may end.
TEST_F(NewBackups, WhatTwoServersThatEndHaveOfEachOtherGoesElsewhere) {
  TakeOverOnce();
  AttachServer(24);
  Say(2, Drain{});
  Say(23, Drain{});
  PassTimeBeating(absl::Seconds(1), {2, 3, 4, 10, 11, 23, 24});
  EXPECT_FALSE(Last<Drained>(2).has_value());
  EXPECT_EQ(Last<HoldBackup>(24).value().server, successor_);
}

// If the first server ended before the other one is back, the other one's weights would
// be lost with its backup.
TEST_F(NewBackups, WhoComesBackFirstAndIsToEndWaitsForTheOthers) {
  Begin();
  const ServerWelcome welcome = Last<ServerWelcome>(1).value();
  const uint64_t epoch = Last<CommitEpoch>(1).value().epoch;
  StartAnew();
  Say(21, ServerHello{.name = "server1",
                      .shard_addresses = {"address"},
                      .identity = ServerIdentity{welcome.server, welcome.incarnation},
                      .held = {{.job = id_, .prepared = epoch, .committed = epoch}}});
  Say(21, Drain{});
  PassTimeBeating(absl::Seconds(1), {21});
  EXPECT_FALSE(Last<Drained>(21).has_value());
  PassTimeBeating(2 * kFailureTimeout, {21});  // nobody else comes
  EXPECT_TRUE(Last<Drained>(21).has_value());
}

TEST_F(NewBackups, TheLastServersNeedNotWait) {
  TakeOverOnce();
  Say(23, Drain{});
  Say(2, Drain{});
  EXPECT_TRUE(Last<Drained>(2).has_value());
}

TEST_F(JobBackups, TheEndOfTheJobEndsItsStandIns) {
  Begin();
  for (const ConnectionId worker : {10, 11}) Say(worker, Leave{});
  EXPECT_TRUE(Last<DropJob>(3).has_value());
  EXPECT_TRUE(Last<DropJob>(4).has_value());
}

}  // namespace
}  // namespace syncline
