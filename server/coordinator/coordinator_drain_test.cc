// Servers that an operator ends: who is told, and what is refused.
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator/coordinator_test_util.h"

namespace syncline {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// The servers are on connections 1 and 2 (numbers 0 and 1), ranks 0 and 1 on 10 and 11.
// Jobs with backups have their stand-ins on 3 and 4.
class CoordinatorDrain : public CoordinatorTest {
 protected:
  void StartCoordinator(uint32_t expected) {
    coordinator_ = std::make_unique<Coordinator>(
        CoordinatorOptions{.timeouts = Timeouts::Derive(kFailureTimeout),
                           .expected_servers = expected,
                           .own_server = "server9"});
    Take(coordinator_->Apply(Start{}, now_));
  }
  void AttachServers(uint32_t expected = 2) {
    StartCoordinator(expected);
    AttachServer(1);
    AttachServer(2);
  }
  void AttachServerOf(ConnectionId connection, uint64_t memory_bytes) {
    Say(connection, ServerHello{.name = absl::StrCat("server", connection),
                                .shard_addresses = {"address"},
                                .memory_bytes = memory_bytes});
  }
  // A job of two places, each with its backup on the other server.
  uint64_t BytesOfBoth() const {
    return coordinator_->View(now_).servers.at(0).memory_placed_bytes;
  }
  void Begin(const std::string& durability) {
    AttachServers();
    BeginJob(durability);
  }
  void BeginJob(const std::string& durability) {
    JobSpec job = TwoTensors(2);
    job.settings.durability = durability;
    WorkersCome(job);
    if (durability == "peer") {
      StandInComes(3, Last<HoldBackup>(2).value());
      StandInComes(4, Last<HoldBackup>(1).value());
    }
    const WorkerWelcome welcome = Last<WorkerWelcome>(10).value();
    if (durability != "disk") return;
    for (const ConnectionId server : {1, 2}) {
      Say(server, EpochCommitted{welcome.job, welcome.epoch, "run1"});
    }
  }
  void WorkersCome(const JobSpec& job) {
    for (const uint32_t rank : {0u, 1u}) {
      SayHello(10 + rank, job,
               {.rank = rank, .run_id = "run", .session_key = 1000 + rank});
    }
  }
  void StandInComes(ConnectionId connection, const HoldBackup& hold) {
    Say(connection, ServerHello{.name = absl::StrCat("stand_in", hold.order),
                                .shard_addresses = {absl::StrCat("memory", hold.server)},
                                .stand_in = StandInFor{hold.job, hold.server, hold.order},
                                .session_key = 77 + hold.server});
  }
  std::string Refusal(const DrainServer& order) {
    const size_t told = told_[1].size();
    const CallAnswer answer = Call(order);
    EXPECT_FALSE(answer.status.ok());
    EXPECT_EQ(told_[1].size(), told) << "nothing is done";
    return std::string(answer.status.message());
  }
  bool Drains(size_t server) const {
    return coordinator_->View(now_).servers.at(server).drains;
  }
};

TEST_F(CoordinatorDrain, AServerThatNobodyNeedsIsToldOnce) {
  AttachServers();
  const CallAnswer answer = Call(DrainServer{"server1"});
  EXPECT_EQ(answer.status, absl::OkStatus());
  EXPECT_EQ(answer.server, 0u);
  EXPECT_EQ(answer.server_name, "server1");
  EXPECT_TRUE(Last<EndServer>(1).has_value());
  EXPECT_FALSE(Last<EndServer>(2).has_value());
  EXPECT_TRUE(Drains(0));
  EXPECT_FALSE(Drains(1));
  const size_t told = told_[1].size();
  EXPECT_EQ(Call(DrainServer{"server1"}).status, absl::OkStatus());
  EXPECT_EQ(told_[1].size(), told) << "a second time would end it as it is";
}

TEST_F(CoordinatorDrain, ItsNumberIsAsGood) {
  AttachServers();
  EXPECT_EQ(Call(DrainServer{"1"}).server_name, "server2");
  EXPECT_TRUE(Last<EndServer>(2).has_value());
}

TEST_F(CoordinatorDrain, WhoIsMeantMustBeThere) {
  AttachServers();
  const CallAnswer answer = Call(DrainServer{"server3"});
  EXPECT_TRUE(absl::IsNotFound(answer.status));
  EXPECT_THAT(std::string(answer.status.message()), HasSubstr("no server 'server3'"));
  EXPECT_TRUE(absl::IsNotFound(Call(DrainServer{"7"}).status));
  EXPECT_TRUE(absl::IsNotFound(Call(DrainServer{""}).status));
}

TEST_F(CoordinatorDrain, AJobThatWouldFailIsNamedAndForceEndsItAllTheSame) {
  Begin("none");
  EXPECT_THAT(Refusal({"server1"}),
              AllOf(HasSubstr("job 'job' would fail"), HasSubstr("--force")));
  EXPECT_FALSE(Drains(0));
  EXPECT_EQ(Call(DrainServer{"server1", true}).status, absl::OkStatus());
  EXPECT_TRUE(Last<EndServer>(1).has_value());
}

TEST_F(CoordinatorDrain, AJobWithJournalsWouldStandStill) {
  Begin("disk");
  EXPECT_THAT(Refusal({"server1"}), HasSubstr("job 'job' would wait"));
}

TEST_F(CoordinatorDrain, AJobWithBackupsLetsOneGoButNotTheLast) {
  Begin("peer");
  EXPECT_EQ(Call(DrainServer{"server1"}).status, absl::OkStatus());
  EXPECT_TRUE(Last<EndServer>(1).has_value());
  const CallAnswer last = Call(DrainServer{"server2"});
  EXPECT_THAT(std::string(last.status.message()), HasSubstr("no other server"));
  EXPECT_FALSE(Last<EndServer>(2).has_value());
  // The server acts as after SIGTERM.
  Say(1, Drain{});
  EXPECT_TRUE(Last<Drained>(1).has_value());
  Say(1, Leave{});
  EXPECT_TRUE(Last<TakeOver>(3).has_value());
  EXPECT_FALSE(Last<JobFailed>(10).has_value());
}

TEST_F(CoordinatorDrain, AServerWithoutRoomIsNobodysBackup) {
  Begin("peer");
  const uint64_t both = BytesOfBoth();
  Say(3, Leave{});
  Say(2, Leave{});  // server1 serves both places from now on
  ASSERT_TRUE(Last<TakeOver>(4).has_value());
  AttachServerOf(5, 1);
  EXPECT_THAT(Refusal({"server1"}), HasSubstr("no other server"));
  AttachServerOf(6, both - 1);
  EXPECT_THAT(Refusal({"server1"}), HasSubstr("no other server")) << "it has for one";
  AttachServer(7);
  EXPECT_EQ(Call(DrainServer{"server1"}).status, absl::OkStatus());
}

TEST_F(CoordinatorDrain, AServerThatHasTheBackupNeedsNoMoreRoom) {
  Begin("peer");
  const uint64_t both = BytesOfBoth();
  StartCoordinator(2);
  told_.clear();
  AttachServerOf(1, both);
  AttachServerOf(2, both);
  BeginJob("peer");
  EXPECT_EQ(Call(DrainServer{"server1"}).status, absl::OkStatus());
}

TEST_F(CoordinatorDrain, AServerWhoseConnectionBrokeIsNobodysBackup) {
  Begin("peer");
  Say(2, Disconnected{});
  EXPECT_THAT(Refusal({"server1"}), HasSubstr("no other server"));
}

TEST_F(CoordinatorDrain, AStandInEndsWithItsHost) {
  Begin("peer");
  EXPECT_THAT(Refusal({"2"}), HasSubstr("in the process of another server"));
}

TEST_F(CoordinatorDrain, TheCoordinatorsOwnServerStays) {
  AttachServers();
  AttachServer(9);
  EXPECT_THAT(Refusal({"server9", true}), HasSubstr("the coordinator's process"));
}

TEST_F(CoordinatorDrain, NoJobBeginsOnAServerThatIsToEnd) {
  AttachServers(1);
  EXPECT_EQ(Call(DrainServer{"server1"}).status, absl::OkStatus());
  WorkersCome(TwoTensors(2));
  EXPECT_TRUE(Last<ConfigureJob>(2).has_value());
  EXPECT_FALSE(Last<ConfigureJob>(1).has_value());
  EXPECT_TRUE(Last<WorkerWelcome>(10).has_value());
}

TEST_F(CoordinatorDrain, AJobThatNeedsItWaitsForAnother) {
  AttachServers();
  EXPECT_EQ(Call(DrainServer{"server1"}).status, absl::OkStatus());
  WorkersCome(TwoTensors(2));
  EXPECT_FALSE(Last<ConfigureJob>(2).has_value());
  AttachServer(3);
  EXPECT_TRUE(Last<ConfigureJob>(2).has_value());
  EXPECT_TRUE(Last<ConfigureJob>(3).has_value());
  EXPECT_FALSE(Last<ConfigureJob>(1).has_value());
}

}  // namespace
}  // namespace syncline
