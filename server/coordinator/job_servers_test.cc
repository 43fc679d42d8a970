// A server dies and leaves a journal. The job waits for a server that reads it.
#include "comm/base/failure.h"
#include "server/coordinator/coordinator_test_util.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(60);

// The servers are on connections 1 and 2, ranks 0 and 1 on 10 and 11.
class JobServers : public CoordinatorTest {
 protected:
  void BeginWith(const JobSpec& job) {
    coordinator_ = std::make_unique<Coordinator>(
        CoordinatorOptions{.timeouts = Timeouts::Derive(kFailureTimeout),
                           .expected_servers = 2,
                           .patience = kPatience});
    Take(coordinator_->Apply(Start{}, now_));
    AttachServer(1);
    AttachServer(2);
    for (const uint32_t rank : {0u, 1u}) {
      SayHello(10 + rank, job,
               {.rank = rank, .run_id = "run", .session_key = 1000 + rank});
    }
    id_ = Last<WorkerWelcome>(10)->job;
    epoch_ = Last<WorkerWelcome>(10)->epoch;
    Say(1, EpochCommitted{.job = id_, .epoch = epoch_, .run = "run1"});
  }
  void Begin() {
    JobSpec job = TwoTensors(2);
    job.settings.durability = "disk";
    BeginWith(job);
  }
  void LoseServer2() {
    Say(2, Disconnected{});
    PassTimeBeating(kFailureTimeout, {1, 10, 11});
  }
  void ServerComes(ConnectionId connection, const std::string& run) {
    Say(connection, ServerHello{.name = absl::StrCat("server", connection),
                                .shard_addresses = {"elsewhere"},
                                .journals = {{"job", run, {1}}}});
  }
  JobView Shown() const { return coordinator_->View(now_).jobs.at(0); }

  uint32_t id_ = 0;
  uint64_t epoch_ = 0;
};

TEST_F(JobServers, AJobWaitsForTheJournalOfItsServerAndGoesOnElsewhere) {
  Begin();
  LoseServer2();
  EXPECT_EQ(Shown().phase, JobPhase::kWaiting);
  EXPECT_THAT(Shown().reason, HasSubstr("waits for server 1 (server2), "));
  EXPECT_THAT(Last<Waiting>(10)->reason, HasSubstr("s of 60 s"));
  ServerComes(3, "run1");
  const auto restore = Last<ConfigureJob>(3);
  ASSERT_TRUE(restore.has_value());
  EXPECT_EQ(restore->restore_run, "run1");
  EXPECT_EQ(restore->first_shard, 1u);
  EXPECT_EQ(Shown().phase, JobPhase::kRunning);
  EXPECT_GT(Shown().epoch, epoch_);
  for (const ConnectionId worker : {10, 11}) {
    const auto change = Last<EpochChanged>(worker);
    ASSERT_TRUE(change.has_value());
    EXPECT_EQ(change->epoch, Shown().epoch);
    ASSERT_EQ(change->moved.size(), 1u);
    EXPECT_EQ(change->moved[0].shard, 1u);
    EXPECT_EQ(change->moved[0].epoch, change->epoch);
    EXPECT_EQ(change->moved[0].address, "elsewhere");
    EXPECT_EQ(change->moved[0].server.server, Last<ServerWelcome>(3)->server);
  }
  EXPECT_EQ(Last<CommitEpoch>(3)->members.size(), 2u);
  EXPECT_FALSE(Last<JobFailed>(10).has_value());
}

TEST_F(JobServers, WhatJournalsHaveIsShownUntilTheyAreGone) {
  Begin();
  JobProgress progress = {.job = id_};
  progress.records = {.durable_step = 7, .lag_steps = 2};
  Say(2, Heartbeat{.jobs = {progress}});
  ASSERT_EQ(Shown().records.size(), 1u);
  EXPECT_EQ(Shown().records.at(1).durable_step, 7u);
  EXPECT_EQ(Shown().records.at(1).lag_steps, 2u);
  Say(2, Heartbeat{.jobs = {{.job = id_}}});
  EXPECT_TRUE(Shown().records.empty());
}

// The numbers tell whether all servers that train have reported.
TEST_F(JobServers, ServersWithoutTrainedBlocksHaveNothingToRecord) {
  Begin();
  EXPECT_EQ(Shown().training_servers, 2u);
  JobSpec job = TwoTensors(2);
  job.settings.durability = "disk";
  job.tensors[1].group.frozen = true;
  BeginWith(job);
  EXPECT_EQ(Shown().training_servers, 1u);
  for (const ConnectionId server : {1, 2}) {
    Say(server, Heartbeat{.jobs = {{.job = id_, .records = RecordProgress{}}}});
  }
  EXPECT_EQ(Shown().records.size(), 1u);
}

// The connection may still return, so nobody is told to replace the server yet.
TEST_F(JobServers, AServerThatIsLostIsShownAtOnce) {
  Begin();
  EXPECT_EQ(Shown().phase, JobPhase::kRunning);
  Say(2, Disconnected{});
  now_ += absl::Seconds(2);
  EXPECT_EQ(Shown().phase, JobPhase::kWaiting);
  EXPECT_EQ(Shown().reason, "server 1 (server2) was lost 2 s ago; the job waits for it");
  EXPECT_EQ(coordinator_->View(now_).servers.at(1).lost_for, absl::Seconds(2));
  EXPECT_FALSE(coordinator_->View(now_).servers.at(0).lost_for.has_value());
  Say(2, Heartbeat{});
  EXPECT_EQ(Shown().phase, JobPhase::kRunning);
  EXPECT_FALSE(coordinator_->View(now_).servers.at(1).lost_for.has_value());
}

TEST_F(JobServers, AServerIsWaitedForSinceItWasLost) {
  Begin();
  Say(2, Disconnected{});
  const absl::Duration lost_at = now_;
  PassTimeBeating(kFailureTimeout, {1, 10, 11});
  EXPECT_THAT(Shown().reason,
              HasSubstr(absl::StrCat("waits for server 1 (server2), ",
                                     absl::ToInt64Seconds(now_ - lost_at), " s of")));
}

TEST_F(JobServers, AServerThatIsLostWithoutAJournalIsShownAsTheEndToCome) {
  BeginWith(TwoTensors(2));
  Say(2, Disconnected{});
  EXPECT_EQ(Shown().phase, JobPhase::kWaiting);
  EXPECT_THAT(Shown().reason,
              HasSubstr("the job fails if its connection is not back after "));
}

// An epoch has no reason before it is committed.
TEST_F(JobServers, AnEpochIsShownWithItsReason) {
  Begin();
  servers_answer_ = false;
  Say(11, Leave{});
  const uint64_t epoch = Last<PrepareEpoch>(1)->epoch;
  EXPECT_EQ(Shown().epoch, epoch_);
  EXPECT_EQ(Shown().reason, "the job begins");
  for (const ConnectionId server : {1, 2}) Say(server, EpochPrepared{id_, epoch, 0});
  EXPECT_EQ(Shown().epoch, epoch_);
  for (const ConnectionId server : {1, 2}) {
    Say(server, EpochCommitted{id_, epoch, "run1"});
  }
  EXPECT_EQ(Shown().epoch, epoch);
  EXPECT_THAT(Shown().reason, HasSubstr("left"));
}

TEST_F(JobServers, WhatHasNoJournalFails) {
  BeginWith(TwoTensors(2));
  LoseServer2();
  EXPECT_THAT(Last<JobFailed>(10)->reason, HasSubstr("server 1 (server2) is lost"));
}

TEST_F(JobServers, ModesWithDelaysFail) {
  JobSpec job = TwoTensors(2);
  job.settings.durability = "disk";
  job.training.mode = {.name = "ssp", .values = {{"staleness", 2}}};
  BeginWith(job);
  LoseServer2();
  EXPECT_THAT(Last<JobFailed>(10)->reason,
              HasSubstr("mode ssp:staleness=2 do not wait for servers"));
}

TEST_F(JobServers, ServersWithoutThatJournalTakeNoPlace) {
  Begin();
  LoseServer2();
  ServerComes(3, "run0");
  EXPECT_FALSE(Last<ConfigureJob>(3).has_value());
  PassTimeBeating(kPatience, {1, 3, 10, 11});
  EXPECT_THAT(Last<JobFailed>(10)->reason, HasSubstr("did not come back within 1m"));
  EXPECT_EQ(Shown().phase, JobPhase::kFailed);
}

TEST_F(JobServers, AJournalThatIsStillWrittenIsAskedForAgain) {
  Begin();
  LoseServer2();
  servers_answer_ = false;
  ServerComes(3, "run1");
  told_.clear();
  Say(3, ConfigureFailed{id_, absl::UnavailableError("it is locked")});
  EXPECT_THAT(Shown().reason, HasSubstr("it is locked"));
  EXPECT_FALSE(Last<JobFailed>(10).has_value());
  PassTimeBeating(absl::Seconds(1), {1, 3, 10, 11});
  EXPECT_TRUE(Last<ConfigureJob>(3).has_value());
}

TEST_F(JobServers, ADamagedJournalEndsTheJob) {
  Begin();
  LoseServer2();
  servers_answer_ = false;
  ServerComes(3, "run1");
  Say(3, ConfigureFailed{id_, absl::DataLossError("it is damaged")});
  EXPECT_THAT(
      Last<JobFailed>(10)->reason,
      HasSubstr("server3 cannot go on from the journal of server 1: it is damaged"));
}

// The journal had ended before its server did.
TEST_F(JobServers, AJournalThatLacksStepsEndsTheJob) {
  Begin();
  beats_[10].step = 6;
  LoseServer2();
  servers_answer_ = false;
  ServerComes(3, "run1");
  Say(3, JobConfigured{.job = id_, .step = 4});
  EXPECT_THAT(Last<JobFailed>(10)->reason,
              HasSubstr("ends at step 4, but workers are at step 6"));
}

// All tensors on the server are frozen, so it has no step.
TEST_F(JobServers, AServerThatTrainsNothingComesBackAtNoStep) {
  Begin();
  beats_[10].step = 6;
  LoseServer2();
  servers_answer_ = false;
  ServerComes(3, "run1");
  Say(3, JobConfigured{.job = id_, .step = ~uint64_t{0}});
  EXPECT_FALSE(Last<JobFailed>(10).has_value());
  EXPECT_EQ(Last<PrepareEpoch>(3)->job, id_);
}

TEST_F(JobServers, ASuccessorThatDiesIsReplaced) {
  Begin();
  LoseServer2();
  servers_answer_ = false;
  ServerComes(3, "run1");
  Say(3, Leave{});
  servers_answer_ = true;
  ServerComes(4, "run1");
  EXPECT_EQ(Shown().phase, JobPhase::kRunning);
  EXPECT_EQ(Last<EpochChanged>(10)->moved[0].server.server,
            Last<ServerWelcome>(4)->server);
}

// The server dies after it has committed and before the others have. Its successor
// commits, too.
TEST_F(JobServers, AChangeUnderWayIsFinishedByTheSuccessor) {
  Begin();
  servers_answer_ = false;
  Say(11, Leave{});
  const uint64_t epoch = Last<PrepareEpoch>(1)->epoch;
  Say(1, EpochPrepared{id_, epoch, 0});
  Say(2, EpochPrepared{id_, epoch, 0});
  Say(2, EpochCommitted{id_, epoch, "run1"});
  Say(2, Leave{});
  Say(1, EpochCommitted{id_, epoch, "run1"});
  EXPECT_FALSE(Last<EpochChanged>(10).has_value());
  ServerComes(3, "run1");
  Say(3, JobConfigured{.job = id_});
  ASSERT_TRUE(Last<CommitEpoch>(3).has_value());
  EXPECT_EQ(Last<CommitEpoch>(3)->epoch, epoch);
  Say(3, EpochCommitted{id_, epoch, "run1"});
  ASSERT_TRUE(Last<EpochChanged>(10).has_value());
  EXPECT_EQ(Last<EpochChanged>(10)->epoch, epoch);
  EXPECT_EQ(Last<EpochChanged>(10)->moved.at(0).epoch, epoch);
}

TEST_F(JobServers, TheCoordinatorMayDieWhileAServerIsAway) {
  Begin();
  LoseServer2();
  const ServerWelcome welcome = *Last<ServerWelcome>(1);
  const WorkerWelcome worker = *Last<WorkerWelcome>(10);
  coordinator_ = std::make_unique<Coordinator>(
      CoordinatorOptions{.timeouts = Timeouts::Derive(kFailureTimeout),
                         .expected_servers = 2,
                         .patience = kPatience});
  ASSERT_TRUE(coordinator_->Restore({state_, records_}, specs_.reader()).ok());
  told_.clear();
  closed_.clear();
  Take(coordinator_->Apply(Start{}, now_));
  Say(101, ServerHello{.name = "server1",
                       .shard_addresses = {"address"},
                       .identity = ServerIdentity{welcome.server, welcome.incarnation},
                       .held = {{.job = id_, .prepared = epoch_, .committed = epoch_}}});
  JobSpec job = TwoTensors(2);
  job.settings.durability = "disk";
  SayHello(110, job,
           {.rank = 0,
            .run_id = "run",
            .member = HeldMembership{.job = id_,
                                     .incarnation = worker.incarnation,
                                     .session_key = worker.session_key,
                                     .epoch = epoch_}});
  PassTimeBeating(3 * kFailureTimeout, {101, 110});
  EXPECT_FALSE(Last<JobFailed>(110).has_value());
  ServerComes(103, "run1");
  EXPECT_EQ(Shown().phase, JobPhase::kRunning);
  ASSERT_TRUE(Last<EpochChanged>(110).has_value());
  EXPECT_EQ(Last<EpochChanged>(110)->moved.at(0).address, "elsewhere");
}

}  // namespace
}  // namespace syncline
