#include "server/coordinator/mode_change.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "comm/base/sync_mode.h"
#include "server/coordinator/coordinator_restart_test_util.h"
#include "server/coordinator/coordinator_test_util.h"

namespace syncline {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

JobSpec OfMode(std::string_view mode) {
  JobSpec job = TwoTensors(2);
  job.training.mode = *ParseModeText(mode);
  return job;
}

// Returns the new staleness, or why the mode cannot change.
std::string Change(const JobSpec& job, std::string_view wanted) {
  const auto changed = ChangedMode(job, *ParseModeText(wanted));
  return changed.ok() ? FormatNamedOptions(*changed)
                      : std::string(changed.status().message());
}

TEST(ChangedMode, TakesAnyStalenessOfAJobOfModeSsp) {
  EXPECT_EQ(Change(OfMode("ssp:4"), "ssp:2"), "ssp:staleness=2");
  EXPECT_EQ(Change(OfMode("ssp:2"), "ssp:64"), "ssp:staleness=64");
  EXPECT_EQ(Change(OfMode("ssp:2"), "ssp"), "ssp:staleness=3");
  EXPECT_EQ(Change(OfMode("ssp:2"), "bsp"), "ssp:staleness=0");
  EXPECT_EQ(Change(OfMode("ssp:0"), "ssp:1"), "ssp:staleness=1");
}

TEST(ChangedMode, WhatTheJobHasAlreadyIsNoChangeInAnyMode) {
  EXPECT_EQ(Change(OfMode("bsp"), "bsp"), "bsp");
  EXPECT_EQ(Change(OfMode("bsp:quorum=2"), "bsp:quorum=2"), "bsp:quorum=2");
  EXPECT_EQ(Change(OfMode("asp"), "asp:age_power=0"), "asp");
}

TEST(ChangedMode, RefusesOtherKindsWithTheReason) {
  EXPECT_THAT(Change(OfMode("bsp"), "ssp:4"),
              AllOf(HasSubstr("job 'job' cannot change from mode 'bsp' to "
                              "'ssp:staleness=4'"),
                    HasSubstr("begin it with mode ssp:0")));
  for (const char* other : {"asp", "asp:age_power=1"}) {
    EXPECT_THAT(Change(OfMode("ssp:4"), other), HasSubstr("each contribution is a step"));
    EXPECT_THAT(Change(OfMode(other), "ssp:4"), HasSubstr("each contribution is a step"));
  }
  for (const char* other : {"bsp:quorum=1", "bsp:whole=1"}) {
    EXPECT_THAT(Change(OfMode("ssp:4"), other), HasSubstr("workers skip steps"));
    EXPECT_THAT(Change(OfMode(other), "ssp:4"), HasSubstr("workers skip steps"));
  }
}

TEST(ChangedMode, RefusesWhatIsOutOfRangeWithTheRange) {
  for (const char* bad : {"ssp:65", "ssp:-1", "ssp:1.5"}) {
    EXPECT_THAT(Change(OfMode("ssp:4"), bad), HasSubstr("a whole number in [0, 64]"));
  }
  EXPECT_THAT(Change(OfMode("ssp:4"), "spp"), HasSubstr("did you mean 'ssp'"));
}

TEST(ChangedMode, RefusesToRunAheadWithWhatThatDoesNotGoWith) {
  JobSpec deltas = OfMode("ssp:0");
  deltas.settings.publish_codec = "onebit:min_elements=0,vectors=1";
  EXPECT_THAT(Change(deltas, "ssp:2"), HasSubstr("not every worker holds"));
  JobSpec scaled = OfMode("ssp:0");
  scaled.training.loss_scaling = {.name = "torch"};
  EXPECT_THAT(Change(scaled, "ssp:2"), HasSubstr("loss scaling"));
  JobSpec backed_up = OfMode("ssp:0");
  backed_up.settings.durability = "peer";
  EXPECT_THAT(Change(backed_up, "ssp:2"), HasSubstr("durability=peer needs mode bsp"));
}

TEST(ChangedMode, RefusesToCrossZeroWithAJournalOnly) {
  JobSpec job = OfMode("ssp:0");
  job.settings.durability = "disk";
  EXPECT_THAT(Change(job, "ssp:2"), HasSubstr("durability=disk"));
  job.training.mode = *ParseModeText("ssp:2");
  EXPECT_THAT(Change(job, "bsp"), HasSubstr("stay at 0, or at 1 to 64"));
  EXPECT_EQ(Change(job, "ssp:4"), "ssp:staleness=4");
}

TEST(ChangedMode, RefusesToCrossZeroWhereWhatIsKeptFollowsTheRate) {
  JobSpec job = OfMode("ssp:2");
  job.settings.push_codec = "onebit:min_elements=0,vectors=1";
  job.training.optimizer = {.name = "sgd"};
  EXPECT_THAT(Change(job, "bsp"), HasSubstr("follows the learning rate"));
  EXPECT_EQ(Change(job, "ssp:4"), "ssp:staleness=4");
  job.training.gradient = {{"clip_value", 1}};
  EXPECT_EQ(Change(job, "bsp"), "ssp:staleness=0") << "it does not follow the rate";
  job.training.gradient = {};
  job.training.optimizer = {.name = "adamw"};
  EXPECT_EQ(Change(job, "bsp"), "ssp:staleness=0") << "nor here";
  job.training.optimizer = {.name = "sgd"};
  job.settings.push_codec = "bf16";
  EXPECT_EQ(Change(job, "bsp"), "ssp:staleness=0") << "nothing is kept";
}

// ---- Who is told, and when ----

UpdateJob To(std::string_view mode) {
  return {.job = "job", .mode = *ParseModeText(mode)};
}

class StalenessOfAJob : public CoordinatorTest {
 protected:
  void BeginWith(std::string_view mode, uint64_t memory_bytes = 0) {
    Say(1, ServerHello{.name = "server1",
                       .shard_addresses = {"address"},
                       .memory_bytes = memory_bytes});
    for (const uint32_t rank : {0u, 1u}) Join(10 + rank, rank, mode);
  }
  void Join(ConnectionId connection, uint32_t rank, std::string_view mode) {
    SayHello(connection, OfMode(mode),
             {.rank = rank,
              .run_id = "run",
              .name = absl::StrCat("worker", rank),
              .session_key = 1000 + connection});
  }
  JobView Shown() { return coordinator_->View(now_).jobs.at(0); }
};

TEST_F(StalenessOfAJob, ComesWithAnEpochToAllServersAndThenToWorkers) {
  BeginWith("ssp:4");
  EXPECT_EQ(Last<WorkerWelcome>(10)->staleness, 4u);
  servers_answer_ = false;
  const CallAnswer answer = Call(To("ssp:2"));
  ASSERT_TRUE(answer.status.ok()) << answer.status;
  const uint32_t id = Last<WorkerWelcome>(10)->job;
  const uint64_t epoch = Last<PrepareEpoch>(1)->epoch;
  EXPECT_EQ(answer.changed.epoch, epoch);
  Say(1, EpochPrepared{id, epoch, 7});
  ASSERT_EQ(Last<CommitEpoch>(1)->epoch, epoch);
  EXPECT_EQ(Last<CommitEpoch>(1)->training->sync().staleness, 2u);
  EXPECT_FALSE(Last<EpochChanged>(10).has_value()) << "not all servers know of it";
  Say(1, EpochCommitted{id, epoch});
  for (const ConnectionId worker : {10, 11}) {
    EXPECT_EQ(Last<EpochChanged>(worker)->epoch, epoch);
    EXPECT_EQ(Last<EpochChanged>(worker)->staleness, 2u);
  }
  EXPECT_EQ(Shown().mode, "ssp:staleness=2");
  EXPECT_THAT(Said(EventKind::kSettings).back(),
              HasSubstr("mode from ssp:staleness=4 to ssp:staleness=2"));
}

// Servers hear of an update during another change with the next change.
TEST_F(StalenessOfAJob, IsNotToldWithTheEpochBeforeIt) {
  BeginWith("ssp:1");
  const uint32_t id = Last<WorkerWelcome>(10)->job;
  servers_answer_ = false;
  ASSERT_TRUE(Call(UpdateJob{.job = "job", .optimizer = {{"lr", 0.25}}}).status.ok());
  const uint64_t epoch = Last<PrepareEpoch>(1)->epoch;
  ASSERT_TRUE(Call(To("ssp:8")).status.ok());
  Say(1, EpochPrepared{id, epoch, 7});
  Say(1, EpochCommitted{id, epoch});
  EXPECT_EQ(Last<EpochChanged>(10)->epoch, epoch);
  EXPECT_EQ(Last<EpochChanged>(10)->staleness, 1u);
  ASSERT_EQ(Last<PrepareEpoch>(1)->epoch, epoch + 1);
  Say(1, EpochPrepared{id, epoch + 1, 7});
  Say(1, EpochCommitted{id, epoch + 1});
  EXPECT_EQ(Last<EpochChanged>(10)->staleness, 8u);
}

// The worker declares the settings that the job began with.
TEST_F(StalenessOfAJob, IsToldToWhoeverJoinsLater) {
  BeginWith("ssp:4");
  ASSERT_TRUE(Call(To("ssp:2")).status.ok());
  Say(11, Leave{});
  Join(12, 1, "ssp:4");
  ASSERT_TRUE(Last<WorkerWelcome>(12).has_value());
  EXPECT_EQ(Last<WorkerWelcome>(12)->staleness, 2u);
  EXPECT_EQ(Last<EpochChanged>(10)->staleness, 2u) << "of an epoch without new options";
}

TEST_F(StalenessOfAJob, IsNotSaidInOtherModes) {
  BeginWith("bsp");
  EXPECT_FALSE(Last<WorkerWelcome>(10)->staleness.has_value());
  const CallAnswer answer = Call(To("ssp:4"));
  EXPECT_EQ(answer.status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Shown().mode, "bsp");
  EXPECT_EQ(Last<PrepareEpoch>(1)->epoch, Last<CommitEpoch>(1)->epoch) << "no new epoch";
}

TEST_F(StalenessOfAJob, ThatDoesNotFitTheServersIsRefused) {
  BeginWith("ssp:1", uint64_t{1} << 30);
  const auto placed = [&] {
    return coordinator_->View(now_).servers.at(0).memory_placed_bytes;
  };
  const uint64_t with_1 = placed();
  ASSERT_TRUE(Call(To("ssp:2")).status.ok());
  const uint64_t a_step = placed() - with_1;
  EXPECT_GT(a_step, 0u);
  ASSERT_TRUE(Call(To("ssp:1")).status.ok());
  EXPECT_EQ(placed(), with_1 + a_step) << "of what was given before some may be held";

  coordinator_ = NewCoordinator();
  specs_ = {};
  told_.clear();
  BeginWith("ssp:1", with_1 + 2 * a_step);
  ASSERT_TRUE(Call(To("ssp:3")).status.ok());
  EXPECT_EQ(placed(), with_1 + 2 * a_step);
  const CallAnswer refused = Call(To("ssp:4"));
  EXPECT_EQ(refused.status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.status.message()),
              AllOf(HasSubstr("staleness 4 needs too much memory, a smaller one may fit"),
                    HasSubstr("on server server1")));
  EXPECT_EQ(Shown().mode, "ssp:staleness=3");
  EXPECT_EQ(placed(), with_1 + 2 * a_step);
}

TEST_F(CoordinatorRestart, TheStalenessIsThatOfTheLastEpochThatAllServersKnow) {
  BeginWith(OfMode("ssp:4"));
  ASSERT_TRUE(Call(To("ssp:2")).status.ok());
  epoch_ = Last<CommitEpoch>(1)->epoch;
  servers_answer_ = false;
  ASSERT_TRUE(Call(To("ssp:6")).status.ok());
  Restart();
  ServersReturn();
  WorkerReturns(0, {}, 1);
  ASSERT_TRUE(Last<EpochChanged>(100).has_value());
  EXPECT_EQ(Last<EpochChanged>(100)->staleness, 2u);
  EXPECT_EQ(Shown().mode, "ssp:staleness=6") << "it comes with the next epoch";
}

}  // namespace
}  // namespace syncline
