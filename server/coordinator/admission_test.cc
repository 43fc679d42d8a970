#include "server/coordinator/admission.h"

#include <map>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/base/failure.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator/coordinator.h"
#include "server/coordinator/declaration_test_util.h"

namespace syncline {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

JobSpec Job(const std::string& name, uint64_t elements) {
  JobSpec job;
  job.name = name;
  job.training.optimizer.name = "adamw";
  job.tensors = {{.name = "a", .shape = {elements}}};
  return job;
}

// On one server.
uint64_t BytesOf(const JobSpec& job) {
  const uint32_t shards = 1;
  return PlaceJob(job, {&shards, 1})->server_use[0].total();
}

absl::Status Place(const JobSpec& job, std::span<const ServerMemory> servers) {
  std::vector<uint32_t> shards;
  for (const ServerMemory& server : servers) shards.push_back(server.shards);
  const auto placement = PlaceJob(job, shards);
  EXPECT_TRUE(placement.ok()) << placement.status();
  return CheckPlacement(job.name, *placement, servers);
}

TEST(PlaceJob, FitsToTheLastByteAndNotOneFurther) {
  const JobSpec job = Job("j", 1 << 20);
  ServerMemory server = {.name = "host:17", .budget_bytes = BytesOf(job)};
  EXPECT_TRUE(Place(job, {&server, 1}).ok());
  server.placed_bytes = 1;
  EXPECT_TRUE(absl::IsResourceExhausted(Place(job, {&server, 1})));
  server.budget_bytes += 1;
  EXPECT_TRUE(Place(job, {&server, 1}).ok());
  server.placed_bytes = 2 * server.budget_bytes;
  EXPECT_FALSE(Place(job, {&server, 1}).ok());
}

TEST(PlaceJob, SaysHowMuchWhereAndWhatToDo) {
  const std::vector<ServerMemory> servers = {
      {.name = "host:17", .shards = 2, .budget_bytes = uint64_t{1} << 40},
      {.name = "host:18",
       .shards = 2,
       .budget_bytes = uint64_t{8} << 30,
       .placed_bytes = uint64_t{5} << 30}};
  const absl::Status status = Place(Job("gpt", uint64_t{1} << 30), servers);
  EXPECT_EQ(FailureOf(status), Failure::kJobRefused);
  EXPECT_THAT(
      std::string(status.message()),
      AllOf(HasSubstr("job 'gpt' needs 8.0 GiB on server host:18 (optimizer state 4.0 "
                      "GiB, weights 2.0 GiB, contributions 1.0 GiB, published 1.0 GiB), "
                      "but only 3.0 GiB of its memory budget of 8.0 GiB are free: "),
            HasSubstr("wait for the end of another job"), HasSubstr("--memory"),
            HasSubstr("syncline plan memory")));
}

TEST(PlaceJob, ABudgetThatIsNotKnownIsNotChecked) {
  const ServerMemory server = {.placed_bytes = uint64_t{1} << 50};
  EXPECT_TRUE(Place(Job("j", uint64_t{1} << 30), {&server, 1}).ok());
}

TEST(ValidateJob, BoundsAllTensorsTogetherBeforeTheyAreCut) {
  JobSpec job = Job("j", 1);
  for (int i = 0; i < 17; ++i) {
    job.tensors.push_back({.name = absl::StrCat("t", i), .shape = {kMaxTensorElements}});
  }
  const absl::Status status = ValidateJob(job);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("elements together"));
}

// ---- In the coordinator ----

class Admission : public ::testing::Test {
 protected:
  explicit Admission(uint32_t expected_servers = 1)
      : coordinator_({.expected_servers = expected_servers}) {}

  void Say(ConnectionId connection, MemberBody body) {
    for (CoordinatorOutput& output :
         specs_.Apply(coordinator_, FromMember{connection, std::move(body)}, now_)) {
      if (const auto* close = std::get_if<CloseMember>(&output)) {
        closed_[close->connection] = close->status;
      }
      if (const auto* message = std::get_if<ToMember>(&output)) {
        if (const auto* job = std::get_if<ConfigureJob>(&message->body)) {
          ++configured_;
          job_ = job->job;
        }
        if (std::holds_alternative<DropJob>(message->body)) ++dropped_;
      }
    }
  }
  void Attach(ConnectionId connection, uint64_t memory_bytes) {
    Say(connection, ServerHello{.name = absl::StrCat("server", connection),
                                .shard_addresses = {"address"},
                                .memory_bytes = memory_bytes});
  }
  void Hello(ConnectionId connection, const JobSpec& job, uint32_t rank = 0) {
    Say(connection, specs_.Hello(job, {.rank = rank, .run_id = "run"}));
  }
  ServerView Server() const { return coordinator_.View(now_).servers.at(0); }

  DeclaredSpecs specs_;
  Coordinator coordinator_;
  const absl::Duration now_ = absl::Seconds(100);
  std::map<ConnectionId, absl::Status> closed_;
  int configured_ = 0;
  int dropped_ = 0;
  uint32_t job_ = 0;  // that was configured last
};

TEST_F(Admission, RefusesAtTheHelloWhatNoServerHas) {
  const JobSpec small = Job("small", 1000);
  Attach(1, BytesOf(small));
  Hello(10, Job("large", 1001));
  ASSERT_TRUE(closed_.contains(10));
  EXPECT_TRUE(absl::IsResourceExhausted(closed_[10])) << closed_[10];
  EXPECT_TRUE(coordinator_.View(now_).jobs.empty()) << "it leaves nothing";
  Hello(11, small);
  EXPECT_EQ(configured_, 1);
}

TEST_F(Admission, MemoryIsTakenFromThePlacementToTheEnd) {
  const JobSpec first = Job("first", 1000);
  const JobSpec second = Job("second", 1000);
  Attach(1, BytesOf(first) + 1);
  Hello(10, first);
  EXPECT_EQ(Server().memory_budget_bytes, BytesOf(first) + 1);
  EXPECT_EQ(Server().memory_placed_bytes, BytesOf(first));
  Hello(11, second);
  EXPECT_TRUE(absl::IsResourceExhausted(closed_[11])) << closed_[11];
  EXPECT_FALSE(closed_.contains(10)) << "the first goes on";
  Say(10, Leave{});
  EXPECT_EQ(Server().memory_placed_bytes, 0u);
  Hello(12, second);
  EXPECT_FALSE(closed_.contains(12));
  EXPECT_EQ(configured_, 2);
}

TEST_F(Admission, OfTwoJobsThatGatherTheFirstToBeginTakesTheMemory) {
  JobSpec first = Job("first", 1000);
  JobSpec second = Job("second", 1000);
  first.workers = second.workers = 2;
  Attach(1, BytesOf(first));
  Hello(10, first);
  Hello(20, second);
  EXPECT_TRUE(closed_.empty()) << "neither has taken anything yet";
  Hello(11, first, 1);
  Hello(21, second, 1);
  EXPECT_EQ(configured_, 1);
  for (const ConnectionId worker : {20, 21}) {
    EXPECT_TRUE(absl::IsResourceExhausted(closed_[worker])) << closed_[worker];
    EXPECT_EQ(FailureOf(closed_[worker]), Failure::kJobRefused);
  }
}

TEST_F(Admission, AJobThatAServerCannotMakeEndsWithThatErrorAlone) {
  Attach(1, 0);
  Hello(10, Job("job", 1000));
  Say(1, ConfigureFailed{job_, absl::ResourceExhaustedError("no memory left")});
  EXPECT_TRUE(absl::IsResourceExhausted(closed_[10])) << closed_[10];
  EXPECT_EQ(FailureOf(closed_[10]), Failure::kJobRefused);
  EXPECT_THAT(std::string(closed_[10].message()),
              HasSubstr("server server1 cannot serve job 'job': no memory left"));
  EXPECT_EQ(dropped_, 1);
  EXPECT_FALSE(closed_.contains(1)) << "the server stays";
  Hello(11, Job("next", 1000));
  EXPECT_EQ(configured_, 2) << "and serves the next one";
}

TEST_F(Admission, AJobWhoseCheckpointIsDamagedIsNotWorthARestart) {
  Attach(1, 0);
  Hello(10, Job("job", 1000));
  Say(1, ConfigureFailed{job_, absl::DataLossError("weights are damaged")});
  EXPECT_EQ(FailureOf(closed_[10]), Failure::kJobRefused);
  EXPECT_THAT(std::string(closed_[10].message()), HasSubstr("--resume NAME"));
}

TEST_F(Admission, ARunningJobEndsWhenItsServerCannotGoOn) {
  Attach(1, 0);
  Hello(10, Job("job", 1000));
  Say(1, JobConfigured{job_});
  Say(1, ConfigureFailed{job_ + 1, absl::InternalError("of another job")});
  Attach(2, 0);
  Say(2, ConfigureFailed{job_, absl::InternalError("it does not serve this one")});
  EXPECT_TRUE(closed_.empty());
  Say(1, ConfigureFailed{job_, absl::InternalError("gone wrong")});
  EXPECT_TRUE(absl::IsInternal(closed_[10])) << closed_[10];
  EXPECT_EQ(FailureOf(closed_[10]), Failure::kRetryable);
}

class AdmissionOfTwoServers : public Admission {
 protected:
  AdmissionOfTwoServers() : Admission(2) {}
};

TEST_F(AdmissionOfTwoServers, WhileOneIsMissingTheJobWaitsForIt) {
  const JobSpec job = Job("job", 1 << 21);  // two blocks, one for each
  Attach(1, BytesOf(job) / 2);
  Hello(10, job);
  EXPECT_TRUE(closed_.empty()) << closed_[10];
  Attach(2, BytesOf(job) / 2);
  EXPECT_EQ(configured_, 2);
  EXPECT_TRUE(closed_.empty());
}

}  // namespace
}  // namespace syncline
