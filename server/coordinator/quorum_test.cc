// When the steps of a job with a quorum are closed, and with which members.
#include "server/coordinator/quorum.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator/coordinator_restart_test_util.h"

namespace syncline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Quorum : public ::testing::Test {
 protected:
  Quorum() { watch_.SetShards({0, 4}); }
  void Held(uint32_t shard, uint64_t step, std::vector<uint32_t> incarnations) {
    watch_.Held({.shard = shard, .step = step, .incarnations = std::move(incarnations)});
  }
  std::optional<QuorumWatch::Verdict> Look() { return watch_.Look(now_, members_); }

  QuorumWatch watch_{SyncMode{.quorum = 2, .grace_ms = 100}};
  absl::Duration now_ = absl::Seconds(50);
  std::vector<MemberRecord> members_ = {{.rank = 0, .incarnation = 10},
                                        {.rank = 1, .incarnation = 11},
                                        {.rank = 2, .incarnation = 12}};
};

TEST_F(Quorum, ClosesAtOnceWithEverybody) {
  Held(0, 3, {10, 11, 12});
  EXPECT_FALSE(Look()) << "the other shard has said nothing";
  Held(4, 3, {10, 11, 12});
  const auto verdict = Look();
  ASSERT_TRUE(verdict);
  EXPECT_EQ(verdict->step, 3u);
  EXPECT_THAT(verdict->incarnations, ElementsAre(10u, 11u, 12u));
}

TEST_F(Quorum, ClosesAfterTheGraceTimeWithThoseWhoAreWholeEverywhereByThen) {
  Held(0, 3, {10, 11, 12});
  Held(4, 3, {10, 11});
  EXPECT_FALSE(Look());
  EXPECT_EQ(watch_.wake_at(), now_ + absl::Milliseconds(100));
  now_ += absl::Milliseconds(99);
  EXPECT_FALSE(Look());
  now_ += absl::Milliseconds(1);
  const auto verdict = Look();
  ASSERT_TRUE(verdict);
  EXPECT_THAT(verdict->incarnations, ElementsAre(10u, 11u)) << "12 is there in parts";
  EXPECT_EQ(verdict->expected, 3u);
  watch_.Closed(3);
  EXPECT_EQ(watch_.wake_at(), absl::InfiniteDuration());
  Held(4, 3, {10, 11, 12});
  EXPECT_FALSE(Look()) << "it is closed";
}

TEST_F(Quorum, ShardsThatNameDifferentMembersAreNotEnough) {
  Held(0, 0, {10, 11});
  Held(4, 0, {11, 12});
  now_ += absl::Seconds(1);
  EXPECT_FALSE(Look());
  EXPECT_EQ(watch_.wake_at(), absl::InfiniteDuration());
}

TEST_F(Quorum, TheDeadDoNotCountAndNoLongerAwaitedAreThoseWhoAreGone) {
  Held(0, 0, {10, 11});
  Held(4, 0, {10, 11});
  EXPECT_FALSE(Look());
  members_.erase(members_.begin());
  now_ += absl::Seconds(1);
  EXPECT_FALSE(Look()) << "one of two";
  members_.pop_back();
  const auto verdict = Look();
  ASSERT_TRUE(verdict) << "all that are left";
  EXPECT_THAT(verdict->incarnations, ElementsAre(11u));
}

TEST_F(Quorum, ThoseWhoBeginLaterAreNotAwaited) {
  members_[2].first_step = 1;
  Held(0, 0, {10, 11});
  Held(4, 0, {10, 11});
  EXPECT_TRUE(Look());
}

// ---- In a job ----

JobSpec OfThree(double grace_ms) {
  JobSpec job = TwoTensors(2);
  job.training.mode = {.name = "bsp", .values = {{"quorum", 1}, {"grace_ms", grace_ms}}};
  return job;
}

class QuorumJob : public CoordinatorRestart {
 protected:
  void Held(ConnectionId server, uint64_t step, std::vector<uint32_t> incarnations) {
    const auto shard = static_cast<uint32_t>(server >= 10 ? server / 10 - 1 : server - 1);
    Say(server, StepHeld{welcomes_[0].job, shard, step, std::move(incarnations)});
  }
  uint32_t Life(uint32_t rank) { return welcomes_[rank].incarnation; }
};

TEST_F(QuorumJob, TellsAllServersTheSameSetAndCountsWhoWasLeftOut) {
  BeginWith(OfThree(200));
  Held(1, 0, {Life(0)});
  Held(2, 0, {Life(0)});
  EXPECT_FALSE(Last<StepClosed>(1).has_value());
  EXPECT_EQ(coordinator_->wake_at(), now_ + absl::Milliseconds(200));
  PassTime(absl::Milliseconds(200));
  for (const ConnectionId server : {1, 2}) {
    const auto closed = Last<StepClosed>(server);
    ASSERT_TRUE(closed.has_value());
    EXPECT_EQ(closed->step, 0u);
    EXPECT_THAT(closed->incarnations, ElementsAre(Life(0)));
  }
  EXPECT_EQ(Shown().left_out, 1u);
  EXPECT_EQ(Shown().members[0].left_out, 0u);
  EXPECT_EQ(Shown().members[1].left_out, 1u);
}

TEST_F(QuorumJob, ADeathClosesTheStepWithTheOthersOnceItsEpochIsTold) {
  BeginWith(OfThree(60'000));
  Held(1, 0, {Life(0)});
  Held(2, 0, {Life(0)});
  Say(11, Leave{});
  const auto closed = Last<StepClosed>(2);
  ASSERT_TRUE(closed.has_value()) << "nobody is missing any more";
  EXPECT_THAT(closed->incarnations, ElementsAre(Life(0)));
}

TEST_F(QuorumJob, AStepThatOneServerWasToldReachesTheOtherBeforeTheNextEpoch) {
  BeginWith(OfThree(0));
  Held(1, 0, {Life(0), Life(1)});
  Held(2, 0, {Life(0), Life(1)});
  const auto closed = Last<StepClosed>(1);
  ASSERT_TRUE(closed.has_value());
  servers_answer_ = false;
  Say(11, Leave{});
  Say(1, EpochPrepared{welcomes_[0].job, epoch_ + 1, 1});
  Say(2, EpochPrepared{welcomes_[0].job, epoch_ + 1, 1});
  Restart();
  ServerReturns(2, {.prepared = epoch_ + 1, .committed = epoch_});
  Held(20, 0, {Life(0), Life(1)});
  EXPECT_FALSE(Last<CommitEpoch>(20).has_value()) << "it would throw rank 1's away";
  ServerReturns(1, {.prepared = epoch_ + 1, .committed = epoch_ + 1, .closed = closed});
  EXPECT_FALSE(Last<StepClosed>(10).has_value()) << "it knows";
  std::vector<std::string> order;
  for (const CoordinatorBody& body : told_[20]) {
    if (const auto* step = std::get_if<StepClosed>(&body)) {
      EXPECT_EQ(step->incarnations, closed->incarnations);
      order.emplace_back("closed");
    }
    if (std::holds_alternative<CommitEpoch>(body)) order.emplace_back("commit");
  }
  EXPECT_THAT(order, ElementsAre("closed", "commit"));
}

TEST_F(QuorumJob, AWindowThatWasOpenIsOpenedAgainByWhatServersRepeat) {
  BeginWith(OfThree(100));
  Held(1, 0, {Life(0)});
  Held(2, 0, {Life(0)});
  Restart();
  ServersReturn();
  Held(10, 0, {Life(0)});
  Held(20, 0, {Life(0)});
  EXPECT_FALSE(Last<StepClosed>(10).has_value());
  PassTime(absl::Milliseconds(100));
  EXPECT_TRUE(Last<StepClosed>(10).has_value());
}

TEST(QuorumSpec, WholeNeedsNoNumberOfWorkers) {
  JobSpec job = OfThree(0);
  job.training.mode.values = {{"whole", 1}};
  EXPECT_EQ(ValidateJob(job), absl::OkStatus());
}

TEST(QuorumSpec, WhatMakesNoSenseIsRefusedWithTheRange) {
  JobSpec job = OfThree(0);
  job.training.mode.values["quorum"] = 3;
  EXPECT_THAT(std::string(ValidateJob(job).message()), HasSubstr("allowed are 1 to 2"));
  job.training.mode.values["quorum"] = kMaxWorkers;
  EXPECT_THAT(std::string(ValidateJob(job).message()),
              HasSubstr("quorum is 16384, allowed are 1 to 2"));
  job.training.mode.values["quorum"] = 0;
  EXPECT_THAT(std::string(ValidateJob(job).message()),
              HasSubstr("quorum is 0, but must be a whole number in [1, 16384]"));
  job.training.mode.values = {{"grace_ms", 5}};
  EXPECT_THAT(std::string(ValidateJob(job).message()), HasSubstr("there is no quorum"));
  job.training.mode.values = {{"quorum", 1}, {"grace_ms", 60'001}};
  EXPECT_THAT(std::string(ValidateJob(job).message()), HasSubstr("[0, 60000]"));
  job.training.mode = {.name = "ssp", .values = {{"quorum", 1}}};
  EXPECT_THAT(std::string(ValidateJob(job).message()), HasSubstr("quorum"));
  job = OfThree(0);
  job.training.aggregation = Aggregation::kArrival;
  EXPECT_THAT(std::string(ValidateJob(job).message()), HasSubstr("rank_order"));
  job = OfThree(0);
  job.settings.publish_codec = "onebit:min_elements=0,vectors=1";
  EXPECT_THAT(std::string(ValidateJob(job).message()), HasSubstr("differences"));
}

}  // namespace
}  // namespace syncline
