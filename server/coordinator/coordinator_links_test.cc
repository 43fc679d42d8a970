// Members whose streams break, and that return on new streams.
#include <map>
#include <optional>

#include "absl/strings/str_cat.h"
#include "comm/base/failure.h"
#include "gtest/gtest.h"
#include "server/coordinator/coordinator.h"
#include "server/coordinator/declaration_test_util.h"

namespace syncline {
namespace {

JobSpec TwoTensors(uint32_t workers) {
  JobSpec job;
  job.name = "job";
  job.workers = workers;
  job.tensors = {{.name = "a", .shape = {100}}, {.name = "b", .shape = {3, 4}}};
  return job;
}

// Server 1 answers by itself.
class CoordinatorLinks : public ::testing::Test {
 protected:
  void Say(ConnectionId connection, MemberBody body) {
    Take(specs_.Apply(coordinator_, FromMember{connection, std::move(body)}, now_));
  }

  // Beats on all `alive` connections while `duration` passes.
  void PassTimeBeating(absl::Duration duration, const std::vector<ConnectionId>& alive) {
    for (const absl::Duration end = now_ + duration; now_ < end;) {
      for (const ConnectionId connection : alive) Say(connection, Heartbeat{});
      now_ += absl::Seconds(1);
      Take(specs_.Apply(coordinator_, Tick{}, now_));
    }
  }

  void Take(const CoordinatorOutputs& outputs) {
    for (const CoordinatorOutput& output : outputs) {
      if (const auto* close = std::get_if<CloseMember>(&output)) {
        closed_[close->connection] = close->status;
      }
      const auto* message = std::get_if<ToMember>(&output);
      if (message == nullptr) continue;
      told_[message->connection].push_back(message->body);
      if (const auto* job = std::get_if<ConfigureJob>(&message->body)) {
        Say(message->connection, JobConfigured{job->job});
      }
      if (const auto* prepare = std::get_if<PrepareEpoch>(&message->body)) {
        Say(message->connection, EpochPrepared{prepare->job, prepare->epoch, 0});
      }
      if (const auto* commit = std::get_if<CommitEpoch>(&message->body)) {
        Say(message->connection, EpochCommitted{commit->job, commit->epoch});
      }
    }
  }

  void Hello(ConnectionId connection, uint32_t rank) {
    Say(connection, specs_.Hello(TwoTensors(2), {.rank = rank,
                                                 .run_id = "run",
                                                 .name = absl::StrCat("worker", rank)}));
  }

  void Begin() {
    Say(1, ServerHello{.name = "server1", .shard_addresses = {"a"}});
    Hello(10, 0);
    Hello(11, 1);
    ASSERT_TRUE(Last<WorkerWelcome>(11).has_value());
  }

  template <typename Body>
  std::optional<Body> Last(ConnectionId connection) {
    std::optional<Body> last;
    for (const CoordinatorBody& body : told_[connection]) {
      if (const auto* found = std::get_if<Body>(&body)) last = *found;
    }
    return last;
  }

  DeclaredSpecs specs_;
  Coordinator coordinator_{CoordinatorOptions{Timeouts::Derive(absl::Seconds(10)), 1}};
  absl::Duration now_ = absl::Seconds(1);
  std::map<ConnectionId, std::vector<CoordinatorBody>> told_;
  std::map<ConnectionId, absl::Status> closed_;
};

TEST_F(CoordinatorLinks, WhoReturnsOnANewStreamIsTheSameMember) {
  Begin();
  const uint64_t epoch = Last<CommitEpoch>(1)->epoch;
  for (const ConnectionId member : {1, 11}) {
    Say(member, Disconnected{});
    PassTimeBeating(absl::Seconds(2), {10});
    Say(member, Returned{});
    PassTimeBeating(absl::Seconds(5), {1, 10, 11});
  }
  EXPECT_TRUE(closed_.empty());
  EXPECT_EQ(Last<CommitEpoch>(1)->epoch, epoch);
}

TEST_F(CoordinatorLinks, AServerThatStartsAgainTakesThePlaceOfItsBrokenLink) {
  Begin();
  Say(2, ServerHello{.name = "server1", .shard_addresses = {"a"}});
  EXPECT_TRUE(absl::IsAlreadyExists(closed_[2]));
  Say(1, Disconnected{});
  Say(3, ServerHello{.name = "server1", .shard_addresses = {"a"}});
  EXPECT_TRUE(absl::IsAborted(closed_[1]));
  ASSERT_TRUE(Last<ServerWelcome>(3).has_value());
  EXPECT_EQ(FailureOf(closed_[10]), Failure::kRetryable);
}

// The user presses Ctrl-C, and starts the same command again.
TEST_F(CoordinatorLinks, ARunThatNeverBeganMakesWayForTheNext) {
  Hello(10, 0);
  Say(10, Disconnected{});
  Say(11, specs_.Hello(TwoTensors(2), {.rank = 0, .run_id = "other", .name = "x"}));
  EXPECT_FALSE(closed_.contains(11)) << closed_[11];
  EXPECT_EQ(FailureOf(closed_[10]), Failure::kRetryable);
}

}  // namespace
}  // namespace syncline
