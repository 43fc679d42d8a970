// Which members or servers are found to hold up a job, and after how long: cases by hand.
#include "server/coordinator/stall.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace syncline {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr absl::Duration kF = absl::Seconds(10);

// Two servers with 10 blocks each, and ranks 0 and 1. There is one look a second.
class StallTest : public ::testing::Test {
 protected:
  StallTest() : watch_(Timeouts::Derive(kF)) {
    for (const uint32_t rank : {0u, 1u}) {
      members_[rank] = {.rank = rank};
    }
    for (const uint32_t server : {0u, 1u}) {
      progress_[server] = {.job = 1, .step = 20, .trained = 10};
      progress_[server].members = {{.rank = 0}, {.rank = 1}};
    }
  }

  JobProgress::Member& Of(uint32_t server, uint32_t rank) {
    return progress_[server].members[rank];
  }
  // Rank 0 has contributed everything to both servers, and rank 1 nothing.
  void OnlyRankZeroContributed() {
    for (const uint32_t server : {0u, 1u}) {
      Of(server, 0).waits = 10;
      Of(server, 1).owed = 10;
    }
    members_[0].waits = true;
  }

  // Looks until there is a verdict, at most for that time.
  StallVerdict Watch(absl::Duration limit) {
    for (took_ = {}; took_ < limit; took_ += absl::Seconds(1)) {
      now_ += absl::Seconds(1);
      for (const auto& [server, progress] : progress_) {
        if (!hears_nobody_.contains(server)) ++bytes_[server];
        watch_.Said(server, {.bytes = bytes_[server], .silent = silent_[server]},
                    progress);
      }
      std::vector<StallMember> members;
      for (const auto& [rank, member] : members_) members.push_back(member);
      if (each_second_) each_second_();
      StallVerdict verdict = watch_.Look(now_, members, {{0, "left"}, {1, "right"}});
      if (!verdict.drops.empty() || !verdict.failure.empty()) return verdict;
    }
    return {};
  }
  static bool IsNothing(const StallVerdict& verdict) {
    return verdict.drops.empty() && verdict.failure.empty();
  }

  StallWatch watch_;
  std::map<uint32_t, StallMember> members_;
  std::map<uint32_t, JobProgress> progress_;
  std::map<uint32_t, uint64_t> bytes_;
  std::map<uint32_t, absl::Duration> silent_;
  std::set<uint32_t> hears_nobody_;
  std::function<void()> each_second_;
  absl::Duration now_ = absl::Seconds(1000);
  absl::Duration took_;
};

TEST_F(StallTest, AllMayComputeAsLongAsTheyLike) {
  EXPECT_TRUE(IsNothing(Watch(100 * kF)));
  EXPECT_THAT(watch_.held_up(), IsEmpty());
}

TEST_F(StallTest, AMemberThatOwesIsDroppedAfterFiveTimeouts) {
  OnlyRankZeroContributed();
  const StallVerdict verdict = Watch(10 * kF);
  ASSERT_EQ(verdict.drops.size(), 1u);
  EXPECT_EQ(verdict.drops[0].rank, 1u);
  EXPECT_THAT(verdict.drops[0].reason, HasSubstr("owes step 20 in 20 blocks"));
  EXPECT_GE(took_, 5 * kF - absl::Seconds(1));
  EXPECT_LE(took_, 5 * kF + absl::Seconds(2));
  EXPECT_THAT(watch_.held_up(), HasSubstr("rank 1 owes step 20"));
}

// While a block is on its cable for longer than that, no message arrives.
TEST_F(StallTest, WhileBytesCrossNobodyIsTakenForStuck) {
  OnlyRankZeroContributed();
  members_[1].waits = true;
  bool crosses = true;
  each_second_ = [&] {
    if (crosses) ++Of(0, 1).moved;
  };
  EXPECT_TRUE(IsNothing(Watch(20 * kF)));
  crosses = false;
  EXPECT_FALSE(IsNothing(Watch(20 * kF)));
}

TEST_F(StallTest, UnevenStepsAreNamed) {
  OnlyRankZeroContributed();
  members_[1].in_barrier = true;
  const StallVerdict verdict = Watch(10 * kF);
  ASSERT_EQ(verdict.drops.size(), 1u);
  EXPECT_EQ(verdict.drops[0].rank, 1u);
  EXPECT_THAT(verdict.drops[0].reason,
              HasSubstr("is in Barrier: do workers make different numbers of steps?"));
}

TEST_F(StallTest, ClaimingToWaitDoesNotHelp) {
  OnlyRankZeroContributed();
  members_[1].waits = true;
  const StallVerdict verdict = Watch(10 * kF);
  ASSERT_EQ(verdict.drops.size(), 1u);
  EXPECT_EQ(verdict.drops[0].rank, 1u);
}

TEST_F(StallTest, ASlowMemberThatMovesIsLeftAlone) {
  OnlyRankZeroContributed();
  int seconds = 0;
  each_second_ = [&] {
    if (++seconds % 40 == 0) ++Of(0, 1).moved;
  };
  EXPECT_TRUE(IsNothing(Watch(40 * kF)));
}

TEST_F(StallTest, MovementOfOthersNewLivesAndEpochsResetNothing) {
  OnlyRankZeroContributed();
  uint64_t seconds = 0;
  each_second_ = [&] {
    ++seconds;
    ++Of(0, 0).moved;
    ++members_[0].bytes;
    // A new epoch: for a moment nobody holds anything.
    Of(0, 1).owed = Of(1, 1).owed = seconds % 10 == 0 ? 0 : 10;
  };
  const StallVerdict verdict = Watch(8 * kF);
  ASSERT_EQ(verdict.drops.size(), 1u);
  EXPECT_EQ(verdict.drops[0].rank, 1u);
  EXPECT_LE(took_, 6 * kF);
}

TEST_F(StallTest, AMemberWithNothingHeldThatClaimsToWaitIsDropped) {
  members_[1].waits = true;  // and rank 0 computes
  const StallVerdict verdict = Watch(10 * kF);
  ASSERT_EQ(verdict.drops.size(), 1u);
  EXPECT_EQ(verdict.drops[0].rank, 1u);
  EXPECT_THAT(verdict.drops[0].reason, HasSubstr("no server has held anything of it"));
}

TEST_F(StallTest, AMemberThatOthersMissInTheBarrierIsDropped) {
  members_[0].in_barrier = true;
  const StallVerdict verdict = Watch(10 * kF);
  ASSERT_EQ(verdict.drops.size(), 1u);
  EXPECT_EQ(verdict.drops[0].rank, 1u);
  EXPECT_THAT(verdict.drops[0].reason, HasSubstr("Barrier"));
}

TEST_F(StallTest, AJoinerThatLoadsIsAwaitedInTheBarrier) {
  members_[0].in_barrier = true;
  members_[1].waits = true;
  each_second_ = [&] {
    ++Of(0, 1).moved;
    ++members_[1].bytes;
  };
  EXPECT_TRUE(IsNothing(Watch(20 * kF)));
}

TEST_F(StallTest, AServerThatEverybodyOwesIsToBlame) {
  for (const uint32_t rank : {0u, 1u}) {
    Of(1, rank).owed = 5;  // each lacks what the other has given
    Of(1, rank).waits = 5;
    members_[rank].waits = true;
  }
  const StallVerdict verdict = Watch(10 * kF);
  EXPECT_THAT(verdict.failure,
              AllOf(HasSubstr("server 1 (right)"), HasSubstr("data network")));
}

TEST_F(StallTest, AServerThatHearsNobodyIsToBlameForOneMember) {
  Of(1, 0).waits = 10;
  Of(1, 1).owed = 10;
  members_[0].waits = members_[1].waits = true;
  hears_nobody_ = {1};
  EXPECT_THAT(Watch(10 * kF).failure, HasSubstr("server 1 (right)"));
}

TEST_F(StallTest, AMemberCutOffFromOneServerIsDropped) {
  Of(1, 0).waits = 10;
  Of(1, 1).owed = 10;
  members_[0].waits = members_[1].waits = true;
  const StallVerdict verdict = Watch(10 * kF);  // rank 0 is heard there
  ASSERT_EQ(verdict.drops.size(), 1u);
  EXPECT_EQ(verdict.drops[0].rank, 1u);
}

// The left server was cut off before rank 1 had its first views of it, so that rank 1
// could compute nothing for the right one either.
TEST_F(StallTest, AServerIsToBlameWhoseViewsAMemberNeedsForAllOthers) {
  members_[2] = {.rank = 2};
  for (const uint32_t server : {0u, 1u}) {
    progress_[server].members.push_back({.rank = 2});
    Of(server, 1).owed = 10;
    Of(server, 2).waits = 10;
  }
  Of(0, 0).owed = 10;
  Of(1, 0).waits = 10;
  for (auto& [rank, member] : members_) member.waits = true;
  hears_nobody_ = {0};
  const StallVerdict verdict = Watch(10 * kF);
  EXPECT_THAT(verdict.drops, IsEmpty());
  EXPECT_THAT(verdict.failure,
              HasSubstr("server 0 (left) lacks contributions that other servers have"));
}

// Rank 0 cannot give the left server its first values; rank 1 waits for them, and its
// wish did not arrive there either.
TEST_F(StallTest, AServerThatCannotBeSeededIsToBlame) {
  members_[0].seeds = true;
  members_[0].waits = members_[1].waits = true;
  progress_[0].unseeded = 10;
  hears_nobody_ = {0};
  const StallVerdict verdict = Watch(10 * kF);
  EXPECT_THAT(verdict.drops, IsEmpty());
  EXPECT_THAT(verdict.failure,
              HasSubstr("server 0 (left) lacks contributions that other servers have"));
  EXPECT_LE(took_, 5 * kF + absl::Seconds(2));
}

TEST_F(StallTest, WhenAllWaitAndNoServerHoldsAnythingTheJobFails) {
  members_[0].waits = members_[1].waits = true;
  progress_[1].step = 19;
  const StallVerdict verdict = Watch(10 * kF);
  EXPECT_THAT(verdict.failure, AllOf(HasSubstr("all members wait"),
                                     HasSubstr("server 1 (right) is still at step 19")));
}

TEST_F(StallTest, ALoneMemberThatWaitsInVainFailsTheJob) {
  members_.erase(1);
  members_[0].waits = true;
  EXPECT_THAT(Watch(10 * kF).failure, HasSubstr("all members wait"));
}

TEST_F(StallTest, AServerWhoseFiguresAlwaysGrowHoldsNobodyForever) {
  members_[0].waits = members_[1].waits = true;
  each_second_ = [&] {
    for (const uint32_t rank : {0u, 1u}) {
      ++Of(1, rank).moved;
      Of(1, rank).waits = 1;
    }
    ++progress_[1].step;
    ++progress_[1].completed;
  };
  EXPECT_THAT(Watch(40 * kF).failure, HasSubstr("all members wait"));
  EXPECT_LE(took_, 31 * kF);
}

TEST_F(StallTest, AServerThatSaysNothingIsNamed) {
  progress_.erase(1);
  members_[0].waits = members_[1].waits = true;
  Of(0, 0).waits = Of(0, 1).waits = 1;
  EXPECT_THAT(Watch(10 * kF).failure,
              HasSubstr("server 1 (right) has never reported what it holds"));
}

TEST_F(StallTest, ASilentEngineIsFoundThoughNobodyWaits) {
  each_second_ = [&] { silent_[1] += absl::Seconds(1); };
  EXPECT_THAT(Watch(10 * kF).failure,
              AllOf(HasSubstr("server 1 (right) sends heartbeats"),
                    HasSubstr("has not answered")));
}

TEST_F(StallTest, AnUndecidedStepEndsOnlyWhenAllWait) {
  progress_[0].undecided = 10;
  for (const uint32_t rank : {0u, 1u}) Of(0, rank).waits = 10;
  members_[0].waits = true;  // rank 1 still computes the rest of its gradients
  EXPECT_TRUE(IsNothing(Watch(20 * kF)));
  members_[1].waits = true;
  EXPECT_THAT(Watch(10 * kF).failure, HasSubstr("decision"));
}

// The last member of a job, on a slow cable.
TEST_F(StallTest, WhileBytesCrossAStepMayWaitForItsDecision) {
  members_.erase(1);
  members_[0].waits = true;
  progress_[0].undecided = 10;
  Of(0, 0).waits = 10;
  bool crosses = true;
  each_second_ = [&] {
    if (crosses) ++Of(1, 0).moved;
  };
  EXPECT_TRUE(IsNothing(Watch(20 * kF)));
  crosses = false;
  EXPECT_THAT(Watch(10 * kF).failure, HasSubstr("decision"));
}

TEST_F(StallTest, ASeederThatSeedsNothingIsDroppedAndASlowOneIsNot) {
  progress_[0].unseeded = 10;
  progress_[1].unseeded = 90;
  members_[0].seeds = true;
  members_[1].waits = true;
  Of(0, 1).waits = 1;  // it has asked
  int seconds = 0;
  each_second_ = [&] {
    if (++seconds % 40 == 0 && seconds < 1000) --progress_[1].unseeded;
  };
  const StallVerdict verdict = Watch(200 * kF);
  ASSERT_EQ(verdict.drops.size(), 1u);
  EXPECT_EQ(verdict.drops[0].rank, 0u);
  EXPECT_THAT(verdict.drops[0].reason, HasSubstr("first values"));
  EXPECT_GT(took_, absl::Seconds(1000));
  EXPECT_LE(took_, absl::Seconds(1000) + 6 * kF);
}

TEST_F(StallTest, APauseOfTheCoordinatorIsNotHeldAgainstMembers) {
  OnlyRankZeroContributed();
  EXPECT_TRUE(IsNothing(Watch(4 * kF)));
  now_ += 100 * kF;
  EXPECT_TRUE(IsNothing(Watch(kF / 2)));
}

// A large model and a slow link: everybody waits until the records are there.
TEST_F(StallTest, NobodyIsToBlameWhileBytesCrossToABackup) {
  OnlyRankZeroContributed();
  members_[1].waits = true;
  uint64_t crossed = 0;
  each_second_ = [&] { progress_[0].backup_bytes = ++crossed; };
  EXPECT_THAT(Watch(20 * kF).failure, IsEmpty());
  EXPECT_TRUE(watch_.backups_move());
  each_second_ = nullptr;
  EXPECT_FALSE(Watch(20 * kF).drops.empty());
  EXPECT_FALSE(watch_.backups_move());
}

}  // namespace
}  // namespace syncline
