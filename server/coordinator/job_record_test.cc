#include "server/coordinator/job_record.h"

#include "comm/base/failure.h"
#include "nlohmann/json.hpp"
#include "server/coordinator/coordinator_restart_test_util.h"
#include "server/coordinator/held_job.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(JobRecord, KeepsADecisionBitForBit) {
  const JobRecord record = {
      .id = 7,
      .name = "job",
      .decision = StepDecision{.job = 7,
                               .step = 50,
                               .decision = {.gradient_scale = 0.1f,
                                            .skip = true,
                                            .loss_scale = 512,
                                            .figures = {0.1, kInfinity, -0.0}},
                               .scaler = {.scale = 512, .growth_tracker = 3},
                               .skipped = 4}};
  const auto read = ParseJobRecord(WriteJobRecord(record));
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_TRUE(read->decision.has_value());
  EXPECT_EQ(WriteJobRecord(*read), WriteJobRecord(record));
  EXPECT_EQ(read->decision->job, 7u);
  EXPECT_EQ(read->decision->decision.gradient_scale, 0.1f);
  EXPECT_EQ(read->decision->decision.figures,
            (std::vector<double>{0.1, kInfinity, -0.0}));
  EXPECT_EQ(read->decision->scaler.growth_tracker, 3);
}

// A faulty server that returns to a restarted coordinator may report such a decision. The
// next coordinator must still be able to read the record.
TEST(JobRecord, KeepsNegativeNumbersOfAServersDecision) {
  const JobRecord record = {
      .id = 7,
      .name = "job",
      .decision =
          StepDecision{.job = 7, .scaler = {.growth_tracker = -37, .hysteresis = -1}}};
  const std::string written = WriteJobRecord(record);
  const auto read = ParseJobRecord(written);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->decision->scaler.growth_tracker, -37);
  EXPECT_EQ(read->decision->scaler.hysteresis, -1);
  nlohmann::json json = nlohmann::json::parse(written);
  for (const char* wrong : {"2147483648", "-2147483649", "1.5"}) {
    json["decision"]["hysteresis"] = nlohmann::json::parse(wrong);
    EXPECT_FALSE(ParseJobRecord(json.dump()).ok()) << wrong;
  }
}

// The record needs the host on which a stand-in took over, since its backup must be on
// another one.
TEST(JobRecord, SaysWhereServersAreAndWhoHasNoBackup) {
  const JobRecord record = {.id = 7,
                            .name = "job",
                            .servers = {{.identity = {3, 9},
                                         .name = "b:17/backup-4",
                                         .host = "b:17",
                                         .shard_addresses = {"address"},
                                         .moved_in = 5,
                                         .backup_lost = "the cable broke",
                                         .journal_generation = 17,
                                         .journal_lost = "the disk is full"}}};
  const auto read = ParseJobRecord(WriteJobRecord(record));
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ(read->servers.size(), 1u);
  EXPECT_EQ(read->servers[0].host, "b:17");
  EXPECT_EQ(read->servers[0].moved_in, 5u);
  EXPECT_EQ(read->servers[0].backup_lost, "the cable broke");
  EXPECT_EQ(read->servers[0].journal_generation, 17u);
  EXPECT_EQ(read->servers[0].journal_lost, "the disk is full");
}

// ---- What is stored ----

TEST_F(CoordinatorRestart, WhatIsDamagedEndsThatJobAlone) {
  Begin();
  const std::string key = RecordKey(welcomes_[0].job);
  const std::map<std::string, std::string> good = records_;
  ASSERT_TRUE(good.contains(key));
  for (const char* bad : {"", "{", "{\"version\":1}", "{\"version\":2}"}) {
    records_ = good;
    records_[key] = bad;
    Restart();
    EXPECT_THAT(coordinator_->View(now_).jobs, IsEmpty()) << bad;
    EXPECT_FALSE(records_.contains(key));
    ServerReturns(1, {.prepared = epoch_, .committed = epoch_});
    EXPECT_TRUE(Last<DropJob>(10).has_value());
    WorkerReturns(0);
    EXPECT_EQ(FailureOf(closed_.at(100)), Failure::kRetryable);
  }
  records_ = good;
  records_[DeclarationKey(welcomes_[0].job)] += " ";
  Restart();
  EXPECT_THAT(records_, IsEmpty());
  EXPECT_THAT(coordinator_->View(now_).jobs, IsEmpty());
}

// A record that can be read but cannot be true ends its job and nothing else.
TEST_F(CoordinatorRestart, ARecordThatDoesNotFitEndsThatJobAlone) {
  Begin();
  const std::string key = RecordKey(welcomes_[0].job);
  const std::map<std::string, std::string> good = records_;
  const JobRecord fits = *ParseJobRecord(good.at(key));
  std::vector<std::string> bad = {"{\"version\":\"one\"}", "{\"version\":{}}"};
  const auto change = [&](auto&& edit) {
    JobRecord record = fits;
    edit(record);
    bad.push_back(WriteJobRecord(record));
  };
  change([](JobRecord& record) { record.servers.clear(); });
  change([](JobRecord& record) { record.servers[0].shard_addresses.clear(); });
  change([](JobRecord& record) { record.servers[1] = record.servers[0]; });
  change([](JobRecord& record) { record.training.optimizer.name = "none such"; });
  change([](JobRecord& record) { record.training.gradient["no such option"] = 1; });
  change([](JobRecord& record) {
    record.epoch.training = record.training;
    record.epoch.training->optimizer.name = "none such";
  });
  change([](JobRecord& record) { record.id += 1; });
  change([](JobRecord& record) { record.name = "another"; });
  change([](JobRecord& record) { record.epoch.epoch = 0; });
  change([](JobRecord& record) { record.epoch.members[0].rank = ~0u; });
  change([](JobRecord& record) { record.last_cut = 4294967295; });
  for (const auto& [field, wrong] : std::map<std::string, std::string>{
           {"incarnation", "-1"}, {"rank", "1e308"}, {"server", "4294967296"}}) {
    nlohmann::json json = nlohmann::json::parse(good.at(key));
    const bool is_member = field != "server";
    json[is_member ? nlohmann::json::json_pointer("/epoch/members/1/" + field)
                   : nlohmann::json::json_pointer("/servers/1/" + field)] =
        nlohmann::json::parse(wrong);
    bad.push_back(json.dump());
    EXPECT_THAT(std::string(ParseJobRecord(bad.back()).status().message()),
                HasSubstr(absl::StrCat("'", field, "' is ")));
  }
  for (const std::string& value : bad) {
    records_ = good;
    records_[key] = value;
    Restart();
    EXPECT_THAT(coordinator_->View(now_).jobs, IsEmpty()) << value;
    EXPECT_THAT(records_, IsEmpty()) << value;
  }
  records_ = good;
  Restart();
  EXPECT_EQ(coordinator_->View(now_).jobs.size(), 1u);
}

TEST_F(CoordinatorRestart, AJobThatIsOverLeavesNoRecord) {
  Begin();
  EXPECT_EQ(records_.size(), 2u);
  Say(10, Leave{});
  Say(11, Leave{});
  EXPECT_THAT(records_, IsEmpty());
}

// ---- Numbers of the state ----

TEST_F(CoordinatorRestart, RefusesAStateWithAVersionThatIsNoNumber) {
  for (const char* state : {R"({"version":"one"})", R"({"version":{}})", "{}", "[1]"}) {
    Coordinator coordinator(CoordinatorOptions{Timeouts::Derive(kFailureTimeout), 2});
    EXPECT_EQ(FailureOf(coordinator.Restore({.state = state}, specs_.reader())),
              Failure::kStateUnusable)
        << state;
  }
}

// With another failure timeout all members would be refused, which would end their jobs.
TEST_F(CoordinatorRestart, RefusesToStartWithAnotherFailureTimeoutWhileJobsRun) {
  Begin();
  const auto restore = [&](absl::Duration failure_timeout) {
    coordinator_ = std::make_unique<Coordinator>(
        CoordinatorOptions{Timeouts::Derive(failure_timeout), 2});
    return coordinator_->Restore({state_, records_}, specs_.reader());
  };
  const absl::Status refused = restore(kFailureTimeout / 2);
  EXPECT_EQ(FailureOf(refused), Failure::kUsage);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("1 job runs with --failure-timeout 10s, but this coordinator was "
                        "started with 5s"));
  EXPECT_TRUE(restore(kFailureTimeout).ok());
  records_.clear();
  EXPECT_TRUE(restore(kFailureTimeout / 2).ok()) << "no job runs";
  Take(coordinator_->Apply(Start{}, now_));
  EXPECT_TRUE(restore(kFailureTimeout).ok());
}

// Until its first heartbeat, a new process counts as at its first step.
TEST_F(CoordinatorRestart, AMemberIsNotBeforeItsFirstStep) {
  Begin();
  Restart();
  ServersReturn();
  WorkerReturns(0, {.step = 53});
  next_step_[10] = next_step_[20] = 54;
  Hello(50, 1);
  ASSERT_EQ(Last<WorkerWelcome>(50)->first_step, 54u);
  EXPECT_EQ(Shown().step, 53u);
}

TEST_F(CoordinatorRestart, ANewRunBeginsWhenTheOldOneIsGivenUp) {
  Begin();
  Restart();
  PassTime(absl::Seconds(1));
  PassTime(absl::Seconds(5));
  SayHello(50, TwoTensors(2), {.rank = 0, .run_id = "another run", .session_key = 5});
  EXPECT_FALSE(closed_.contains(50)) << closed_[50];
  EXPECT_THAT(Last<Waiting>(50)->reason, HasSubstr("may still come back within 20s"));
  const uint32_t before = coordinator_->View(now_).jobs.at(0).job;
  PassTimeBeating(absl::Seconds(13), {50});
  EXPECT_EQ(Shown().job, before);
  PassTimeBeating(absl::Seconds(3), {50});
  EXPECT_FALSE(closed_.contains(50)) << closed_[50];
  EXPECT_GT(Shown().job, before);
}

}  // namespace
}  // namespace syncline
