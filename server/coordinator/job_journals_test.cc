// Jobs with journals and backups: which journal of a place counts, and what happens when
// one copy or both are lost.
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "server/coordinator/coordinator_test_util.h"

namespace syncline {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// The servers are on connections 1 and 2 (numbers 0 and 1), their stand-ins on 3 and 4,
// and ranks 0 and 1 on 10 and 11.
class JobJournals : public CoordinatorTest {
 protected:
  void SetUp() override { BeginWith(TwoTensors(2)); }
  void BeginWith(JobSpec job) {
    coordinator_ = std::make_unique<Coordinator>(CoordinatorOptions{
        .timeouts = Timeouts::Derive(kFailureTimeout), .expected_servers = 2});
    Take(coordinator_->Apply(Start{}, now_));
    AttachServer(1);
    AttachServer(2);
    job.settings.durability = "disk+peer";
    for (const uint32_t rank : {0u, 1u}) {
      SayHello(10 + rank, job,
               {.rank = rank, .run_id = "run", .session_key = 1000 + rank});
    }
    StandInComes(3, Last<HoldBackup>(2).value());
    StandInComes(4, Last<HoldBackup>(1).value());
    id_ = Last<WorkerWelcome>(10).value().job;
    Say(1,
        EpochCommitted{.job = id_, .epoch = Last<WorkerWelcome>(10)->epoch, .run = "r"});
  }
  void StandInComes(ConnectionId connection, const HoldBackup& hold) {
    Say(connection, ServerHello{.name = absl::StrCat("stand_in", hold.order),
                                .shard_addresses = {absl::StrCat("memory", hold.order)},
                                .stand_in = StandInFor{hold.job, hold.server, hold.order},
                                .session_key = 77 + hold.order});
  }
  // A new server attaches with the journals of these shards.
  void ServerComes(ConnectionId connection, std::vector<uint32_t> shards,
                   std::vector<uint32_t> generations) {
    Say(connection, ServerHello{.name = absl::StrCat("new", connection),
                                .shard_addresses = {absl::StrCat("new", connection)},
                                .journals = {{"job", "r", std::move(shards),
                                              std::move(generations)}}});
  }
  void Lose(const std::vector<ConnectionId>& lost,
            const std::vector<ConnectionId>& alive) {
    for (const ConnectionId one : lost) Say(one, Disconnected{});
    PassTimeBeating(kFailureTimeout, alive);
  }
  // Server 0 dies and its backup takes over. Returns the generation of the place's new
  // journal.
  uint32_t TakeOver() {
    Lose({1, 4}, {2, 3, 10, 11});
    Say(3, JobConfigured{id_, 5});
    return Last<syncline::TakeOver>(3).value().generation;
  }
  void Restart() {
    coordinator_ = std::make_unique<Coordinator>(CoordinatorOptions{
        .timeouts = Timeouts::Derive(kFailureTimeout), .expected_servers = 2});
    ASSERT_TRUE(coordinator_->Restore({state_, records_}, specs_.reader()).ok());
    told_.clear();
    Take(coordinator_->Apply(Start{}, now_));
  }
  // The coordinator is restarted, and server 1 returns.
  void RestartWithServer1() {
    const ServerWelcome welcome = Last<ServerWelcome>(2).value();
    Restart();
    Say(22, ServerHello{.name = "server2",
                        .shard_addresses = {"address"},
                        .identity = ServerIdentity{welcome.server, welcome.incarnation},
                        .held = {{.job = id_, .run = "r"}}});
  }
  uint64_t PlacedOn(const std::string& name) const {
    for (const ServerView& server : coordinator_->View(now_).servers) {
      if (server.name == name) return server.memory_placed_bytes;
    }
    ADD_FAILURE() << name << " is not attached";
    return 0;
  }
  JobView Shown() const { return coordinator_->View(now_).jobs.at(0); }

  uint32_t id_ = 0;
};

TEST_F(JobJournals, HoldersAreAskedForAPlaceForAJournal) {
  EXPECT_TRUE(Last<HoldBackup>(1)->has_journal);
  EXPECT_FALSE(Last<HoldBackup>(1)->restores);
}

TEST_F(JobJournals, ATakeOverBeginsAnotherGeneration) {
  const uint32_t generation = TakeOver();
  EXPECT_EQ(Last<syncline::TakeOver>(3)->run, "r");
  EXPECT_GT(generation, 0u);
  EXPECT_THAT(Shown().backups[0].journal_lost, HasSubstr("take-over"));
  Say(3, JournalWhole{id_, generation + 1});
  EXPECT_FALSE(Shown().backups[0].journal_lost.empty());
  Say(3, JournalWhole{id_, generation});
  EXPECT_THAT(Shown().backups[0].journal_lost, IsEmpty());
}

// Neither an earlier generation nor an unknown one is restored.
TEST_F(JobJournals, OnlyTheGenerationThatIsStoredIsRestored) {
  const uint32_t generation = TakeOver();
  Say(3, JournalWhole{id_, generation});
  Lose({2, 3}, {10, 11});
  EXPECT_EQ(Shown().phase, JobPhase::kWaiting);
  ServerComes(5, {0}, {0});
  ServerComes(6, {0}, {generation + 1});
  EXPECT_FALSE(Last<ConfigureJob>(5).has_value());
  EXPECT_FALSE(Last<ConfigureJob>(6).has_value());
  ServerComes(7, {0}, {generation});
  ASSERT_TRUE(Last<ConfigureJob>(7).has_value());
  EXPECT_EQ(Last<ConfigureJob>(7)->generation, generation);
  EXPECT_EQ(Last<ConfigureJob>(7)->restore_run, "r");
}

TEST_F(JobJournals, OneProcessRestoresTwoPlaces) {
  Lose({1, 2, 3, 4}, {10, 11});
  EXPECT_FALSE(Last<JobFailed>(10).has_value());
  ServerComes(5, {0, 1}, {0, 0});
  EXPECT_EQ(Last<ConfigureJob>(5)->first_shard, 0u);
  const auto hold = Last<HoldBackup>(5);
  ASSERT_TRUE(hold.has_value());
  EXPECT_TRUE(hold->restores && hold->has_journal);
  StandInComes(6, *hold);
  const auto restore = Last<ConfigureJob>(6);
  ASSERT_TRUE(restore.has_value());
  EXPECT_EQ(restore->restore_run, "r");
  EXPECT_EQ(restore->first_shard, 1u);
  EXPECT_FALSE(restore->backup.has_value());
  EXPECT_EQ(Shown().phase, JobPhase::kRunning);
}

TEST_F(JobJournals, AHostHasTheMemoryOfAllPlacesThatItRestores) {
  const uint64_t both = PlacedOn("server1");  // its own, and the backup of the other one
  Lose({1, 2, 3, 4}, {10, 11});
  ServerComes(5, {0, 1}, {0, 0});
  EXPECT_EQ(PlacedOn("new5"), both) << "it was asked to";
  StandInComes(6, *Last<HoldBackup>(5));
  EXPECT_EQ(Shown().phase, JobPhase::kRunning);
  EXPECT_EQ(PlacedOn("new5"), both);
  EXPECT_EQ(PlacedOn(absl::StrCat("stand_in", Last<HoldBackup>(5)->order)), 0u);
  const ServerWelcome welcome = Last<ServerWelcome>(5).value();
  Restart();
  Say(50, ServerHello{.name = "new5",
                      .shard_addresses = {"new5"},
                      .identity = ServerIdentity{welcome.server, welcome.incarnation},
                      .held = {{.job = id_, .run = "r"}}});
  EXPECT_EQ(PlacedOn("new5"), both);
}

TEST_F(JobJournals, ATakeOverLeavesTheMemoryOfItsHostAsItWas) {
  const uint64_t both = PlacedOn("server2");
  TakeOver();
  EXPECT_EQ(PlacedOn("server2"), both);
}

TEST_F(JobJournals, WhereAnOlderRecordNamesNoHostAServerIsItsOwn) {
  for (auto& [key, record] : records_) {
    for (const char* name : {"server1", "server2"}) {
      const std::string host = absl::StrCat("\"host\":\"", absl::BytesToHexString(name));
      absl::StrReplaceAll({{host, "\"host\":\""}}, &record);
    }
  }
  RestartWithServer1();
  EXPECT_GT(PlacedOn("server2"), 0u);
}

// A spare server sees the journal and restores it, beside the backup that it holds.
TEST_F(JobJournals, WhoHoldsABackupAndRestoresAPlaceHasTheMemoryOfBoth) {
  const uint64_t both = PlacedOn("server1");
  ServerComes(5, {1}, {0});
  Say(1, BackupLost{id_, "the cable broke"});
  PassTimeBeating(absl::Seconds(1), {1, 2, 4, 5, 10, 11});
  const HoldBackup hold = Last<HoldBackup>(5).value();
  ASSERT_EQ(hold.server, 0u);
  StandInComes(6, hold);
  Say(1, BackedUp{id_, Last<BackupAt>(1).value().pair.session_key});
  const uint64_t copy = PlacedOn("new5");
  EXPECT_GT(copy, 0u);
  EXPECT_LT(copy, both);
  Say(4, BackupLost{id_, "no memory"});
  EXPECT_EQ(PlacedOn("server1"), copy) << "its own place";
  Say(2, Leave{});
  PassTimeBeating(absl::Seconds(1), {1, 5, 6, 10, 11});
  EXPECT_EQ(Shown().phase, JobPhase::kRunning);
  EXPECT_EQ(PlacedOn("new5"), both);
  Say(1, BackupLost{id_, "the cable broke"});
  EXPECT_EQ(PlacedOn("new5"), both - copy);
}

TEST_F(JobJournals, WhenItsNodeDoesNotComeAnotherOneIsAsked) {
  Lose({1, 2, 3, 4}, {10, 11});
  ServerComes(5, {0, 1}, {0, 0});
  const uint32_t order = Last<HoldBackup>(5)->order;
  Say(5, ConfigureFailed{id_, absl::InternalError("no port")});
  PassTimeBeating(absl::Seconds(1), {5, 10, 11});
  EXPECT_NE(Last<HoldBackup>(5)->order, order);
}

TEST_F(JobJournals, WhenItDiesBetweenTheTwoBothAreRestoredByTheNext) {
  Lose({1, 2, 3, 4}, {10, 11});
  servers_answer_ = false;
  ServerComes(5, {0, 1}, {0, 0});
  ASSERT_TRUE(Last<HoldBackup>(5).has_value());
  Lose({5}, {10, 11});
  servers_answer_ = true;
  ServerComes(6, {0, 1}, {0, 0});
  ASSERT_TRUE(Last<HoldBackup>(6).has_value());
  StandInComes(7, *Last<HoldBackup>(6));
  EXPECT_EQ(Shown().phase, JobPhase::kRunning);
}

TEST_F(JobJournals, ANodeThatDoesNotComeIsAskedForAgain) {
  Lose({1, 2, 3, 4}, {10, 11});
  ServerComes(5, {0, 1}, {0, 0});
  const uint32_t order = Last<HoldBackup>(5)->order;
  PassTimeBeating(2 * kFailureTimeout, {5, 10, 11});
  EXPECT_NE(Last<HoldBackup>(5)->order, order);
  StandInComes(6, *Last<HoldBackup>(5));
  EXPECT_EQ(Shown().phase, JobPhase::kRunning);
}

// The stand-in told nobody of a step, so the journal has all that count.
TEST_F(JobJournals, AStandInThatDiesWhileItTakesOverLeavesTheJournal) {
  servers_answer_ = false;
  Lose({1}, {2, 3, 4, 10, 11});
  ASSERT_TRUE(Last<syncline::TakeOver>(3).has_value());
  Lose({3}, {2, 4, 10, 11});
  EXPECT_FALSE(Last<JobFailed>(10).has_value());
  EXPECT_THAT(Shown().reason, HasSubstr("waits for server 0"));
  servers_answer_ = true;
  ServerComes(5, {0}, {0});
  EXPECT_EQ(Last<ConfigureJob>(5)->restore_run, "r");
  EXPECT_EQ(Shown().phase, JobPhase::kRunning);
}

TEST_F(JobJournals, AStandInThatDoesNotAnswerLeavesTheJournal) {
  servers_answer_ = false;
  Lose({1}, {2, 3, 4, 10, 11});
  ASSERT_TRUE(Last<syncline::TakeOver>(3).has_value());
  const absl::Duration patience = CoordinatorOptions().patience;
  PassTimeBeating(4 * patience + absl::Seconds(1), {2, 3, 4, 10, 11});
  EXPECT_FALSE(Last<JobFailed>(10).has_value());
  EXPECT_TRUE(Last<DropJob>(3).has_value());
  EXPECT_THAT(Shown().reason, AllOf(HasSubstr("waits for server 0"),
                                    HasSubstr("did not take over within")));
  Say(3, JobConfigured{id_, 5});
  EXPECT_EQ(Shown().phase, JobPhase::kWaiting) << "it is too late";
  servers_answer_ = true;
  ServerComes(5, {0}, {0});
  EXPECT_EQ(Last<ConfigureJob>(5)->restore_run, "r");
  EXPECT_EQ(Shown().phase, JobPhase::kRunning);
}

TEST_F(JobJournals, AStandInThatDoesNotAnswerEndsAJobWithoutAJournal) {
  Say(1, JournalLost{id_, "No space left"});
  servers_answer_ = false;
  Lose({1}, {2, 3, 4, 10, 11});
  PassTimeBeating(4 * CoordinatorOptions().patience + absl::Seconds(1),
                  {2, 3, 4, 10, 11});
  EXPECT_THAT(Last<JobFailed>(10).value().reason,
              AllOf(HasSubstr("did not take over"), HasSubstr("No space left"),
                    HasSubstr("resume from a checkpoint")));
}

TEST_F(JobJournals, ABackupThatCannotGoOnLeavesTheJournal) {
  servers_answer_ = false;
  Lose({1}, {2, 3, 4, 10, 11});
  Say(3, ConfigureFailed{id_, absl::DataLossError("block 0 differs")});
  EXPECT_FALSE(Last<JobFailed>(10).has_value());
  EXPECT_TRUE(Last<DropJob>(3).has_value());
  EXPECT_THAT(Shown().reason, HasSubstr("block 0 differs"));
}

// The journal may lack steps that were told since its end.
TEST_F(JobJournals, AJournalThatHasEndedIsNotWaitedFor) {
  Say(1, JournalLost{id_, "No space left"});
  const auto gone = Last<JournalGone>(1);
  ASSERT_TRUE(gone.has_value());
  EXPECT_GT(gone->generation, 0u);
  Say(1, BackupLost{id_, "the cable broke"});
  Lose({1}, {2, 4, 10, 11});
  EXPECT_THAT(std::string(Last<JobFailed>(10)->reason),
              AllOf(HasSubstr("no longer had a backup"), HasSubstr("No space left")));
}

TEST_F(JobJournals, OneThatBeganAnewIs) {
  Say(1, JournalLost{id_, "No space left"});
  const uint32_t generation = Last<JournalGone>(1)->generation;
  Say(1, JournalLost{id_, "still full"});
  EXPECT_EQ(Last<JournalGone>(1)->generation, generation);
  Say(1, JournalWhole{id_, generation});
  Say(1, BackupLost{id_, "the cable broke"});
  Lose({1}, {2, 4, 10, 11});
  EXPECT_EQ(Shown().phase, JobPhase::kWaiting);
  ServerComes(5, {0}, {0});
  EXPECT_FALSE(Last<ConfigureJob>(5).has_value());
  ServerComes(6, {0}, {generation});
  EXPECT_TRUE(Last<ConfigureJob>(6).has_value());
}

// After a restart of the coordinator backups are lost and journals count as before.
// Servers repeat reports that it may have missed.
TEST_F(JobJournals, WhatCountsOutlivesTheCoordinator) {
  const std::string name = absl::StrCat("stand_in", Last<HoldBackup>(2)->order);
  const uint32_t generation = TakeOver();
  const ServerWelcome welcome = Last<ServerWelcome>(3).value();
  Restart();
  EXPECT_THAT(Shown().backups[0].journal_lost, HasSubstr("take-over"));
  Say(30, ServerHello{.name = name,
                      .shard_addresses = {"memory"},
                      .identity = ServerIdentity{welcome.server, welcome.incarnation},
                      .held = {{.job = id_, .run = "r"}}});
  EXPECT_TRUE(Last<BackupGone>(30).has_value());
  Say(30, JournalWhole{id_, generation});
  EXPECT_THAT(Shown().backups[0].journal_lost, IsEmpty());
  Say(30, JournalLost{id_, "it is full"});
  const uint32_t next = Last<JournalGone>(30)->generation;
  EXPECT_GT(next, generation);
  Restart();
  EXPECT_EQ(Shown().backups[0].journal_lost, "it is full");
  Say(31, ServerHello{.name = name,
                      .shard_addresses = {"memory"},
                      .identity = ServerIdentity{welcome.server, welcome.incarnation},
                      .held = {{.job = id_, .run = "r"}}});
  Say(31, JournalLost{id_, "it is full"});
  EXPECT_EQ(Last<JournalGone>(31)->generation, next);
}

// The last decision is lost, but the journals have all steps.
TEST_F(JobJournals, AServerThatIsLostWithItsCoordinatorLeavesWhatReplayPlays) {
  for (const char* whose : {"server 0", "server 1"}) {
    now_ += absl::Hours(1);
    JobSpec job = TwoTensors(2);
    job.training.gradient = {{"clip_global_norm", 1.0}};
    BeginWith(job);
    RestartWithServer1();
    if (whose == std::string("server 1")) Say(22, Leave{});
    PassTimeBeating(3 * kFailureTimeout, {22});
    ASSERT_EQ(Shown().phase, JobPhase::kFailed);
    EXPECT_THAT(Shown().reason,
                AllOf(HasSubstr(whose), HasSubstr("a job that clips, skips or scales"),
                      HasSubstr("run 'syncline replay' on its journals"),
                      Not(HasSubstr("from a checkpoint"))));
  }
}

TEST_F(JobJournals, OneThatHadEndedIsSaidToBeWhyTheJobDoesNotWait) {
  Say(1, JournalLost{id_, "No space left"});
  RestartWithServer1();
  PassTimeBeating(3 * kFailureTimeout, {22});
  ASSERT_EQ(Shown().phase, JobPhase::kFailed);
  EXPECT_THAT(Shown().reason,
              AllOf(HasSubstr("server 0 (server1) did not come back"),
                    HasSubstr("had no complete journal: No space left; resume from a "
                              "checkpoint"),
                    Not(HasSubstr("clips"))));
}

TEST_F(JobJournals, RightAfterATakeOverADeathEndsTheJob) {
  TakeOver();
  Lose({2, 3}, {10, 11});
  EXPECT_THAT(std::string(Last<JobFailed>(10)->reason),
              HasSubstr("had no complete journal: it starts over after a take-over"));
}

TEST_F(JobJournals, OneThatComesBackWithAnEarlierJournalIsASpare) {
  TakeOver();
  ServerComes(5, {0}, {0});
  EXPECT_FALSE(Last<ConfigureJob>(5).has_value());
  EXPECT_THAT(
      Said(EventKind::kServer),
      ::testing::Contains(AllOf(HasSubstr("earlier journal"), HasSubstr("is a spare"))));
}

}  // namespace
}  // namespace syncline
