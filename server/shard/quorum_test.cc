// Steps with a quorum: what a shard reports about them, and what happens to late
// contributions.
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/shard/shard_test_util.h"
#include "server/shard/sync_policy.h"

namespace syncline {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

// Three members, two blocks.
class QuorumShard : public ::testing::Test {
 protected:
  QuorumShard() {
    rig_.Commit(1, {rig_.Member(0), rig_.Member(1), rig_.Member(2)});
    rig_.Seed(0, SomeValues(100, 1));
    rig_.Seed(1, SomeValues(50, 2));
  }
  static RigOptions Options() {
    RigOptions options;
    options.codec = "fp32";
    options.tensors = {100, 50};
    options.training.mode = {.name = "bsp", .values = {{"quorum", 2}}};
    return options;
  }
  std::vector<std::string> Push(uint32_t rank, uint32_t block, uint64_t step) {
    return Lines(rig_.Push(rank, block, step));
  }
  std::vector<std::string> PushAll(uint32_t rank, uint64_t step) {
    std::vector<std::string> lines = Push(rank, 0, step);
    for (std::string& line : Push(rank, 1, step)) lines.push_back(std::move(line));
    return lines;
  }
  ShardOutputs Close(uint64_t step, std::vector<uint32_t> incarnations) {
    return rig_.shard().Apply(ShardClosed{step, std::move(incarnations)});
  }
  static std::vector<uint16_t> FlagsTo(uint32_t rank, const ShardOutputs& outputs) {
    std::vector<uint16_t> flags;
    for (const ShardOutput& output : outputs) {
      const auto* reply = std::get_if<ShardReply>(&output);
      const bool is_view =
          reply != nullptr && reply->rank == rank &&
          reply->header.kind == static_cast<uint16_t>(MessageKind::kPublish);
      if (is_view) flags.push_back(reply->header.flags);
    }
    return flags;
  }

  ShardRig rig_{Options()};
};

TEST(QuorumPolicy, TellsWhatCountsFromWhatCameTooLate) {
  const auto policy = MakeSyncPolicy({.quorum = 2});
  EXPECT_EQ(policy->Judge({.step = 4, .version = 5}), PushRuling::kTooLate);
  EXPECT_EQ(policy->Judge({.step = 4, .version = 5, .is_counted = true}),
            PushRuling::kCounted);
  EXPECT_EQ(policy->Judge({.step = 5, .version = 5}), PushRuling::kTake);
  EXPECT_EQ(policy->Judge({.step = 5, .version = 5, .is_complete = true}),
            PushRuling::kTooLate);
  EXPECT_EQ(policy->Judge({.step = 6, .version = 5}), PushRuling::kRefuse);
  EXPECT_EQ(policy->Judge({.step = 5, .version = 5, .first_step = 6}),
            PushRuling::kRefuse);
  EXPECT_FALSE(policy->StepsNow({.expected = 3, .present = 3}))
      << "who counts is not for a block to say";
  EXPECT_TRUE(policy->HoldsUp({.expected = 3, .is_limit = true, .whole = 1}));
  EXPECT_FALSE(policy->HoldsUp({.expected = 3, .is_limit = true, .whole = 2}));
  EXPECT_FALSE(policy->HoldsUp({.expected = 1, .is_limit = true, .whole = 1}))
      << "fewer are left than the quorum";
}

TEST_F(QuorumShard, SaysWhoHasGivenAllOfAStepOnceTheyAreEnough) {
  EXPECT_THAT(PushAll(0, 0), ElementsAre("ack r0 b0 s0", "ack r0 b1 s0"));
  EXPECT_THAT(Push(1, 0, 0), ElementsAre("ack r1 b0 s0"));
  EXPECT_THAT(Push(1, 1, 0), ElementsAre("ack r1 b1 s0", "held s0 of 10 11"));
  EXPECT_THAT(Push(1, 1, 0), ElementsAre("ack r1 b1 s0")) << "a repetition";
  EXPECT_THAT(PushAll(2, 0),
              ElementsAre("ack r2 b0 s0", "ack r2 b1 s0", "held s0 of 10 11 12"));
  EXPECT_EQ(rig_.shard().block_version(0), 0u) << "it waits for the word";
}

TEST_F(QuorumShard, AStepIsMadeOfWhatItWasClosedWithAndPartsAreGivenBack) {
  PushAll(0, 0);
  PushAll(1, 0);
  Push(2, 0, 0);
  const ShardOutputs outputs = Close(0, {10, 11});
  EXPECT_THAT(
      Lines(outputs),
      ElementsAre("refuse r2 too late", "applied b0 s0 by r0 r1", "publish r0 b0 v1",
                  "publish r1 b0 v1", "publish r2 b0 v1", "applied b1 s0 by r0 r1",
                  "publish r0 b1 v1", "publish r1 b1 v1", "publish r2 b1 v1"));
  EXPECT_THAT(FlagsTo(0, outputs), ElementsAre(kFlagCounted, kFlagCounted));
  EXPECT_THAT(FlagsTo(2, outputs), ElementsAre(0, 0));
  EXPECT_THAT(Push(2, 1, 0), ElementsAre("refuse r2 too late"));
  EXPECT_THAT(Push(1, 1, 0), ElementsAre("ack r1 b1 s0", "publish r1 b1 v1"));
  EXPECT_THAT(Lines(Close(0, {12})), IsEmpty()) << "it is said";
  EXPECT_THAT(PushAll(2, 1), ElementsAre("ack r2 b0 s1", "ack r2 b1 s1"));
}

TEST_F(QuorumShard, TheBitsAreThoseOfAJobOfTheContributorsAlone) {
  RigOptions two = Options();
  two.training.mode = {};
  ShardRig alone{two};
  alone.Commit(1, {alone.Member(0), alone.Member(1)});
  alone.Seed(0, SomeValues(100, 1));
  alone.Seed(1, SomeValues(50, 2));
  for (const uint32_t block : {0u, 1u}) {
    for (const uint32_t rank : {0u, 1u}) alone.Push(rank, block, 0);
  }
  PushAll(2, 0);
  PushAll(1, 0);
  PushAll(0, 0);
  Close(0, {10, 11});
  for (const uint32_t block : {0u, 1u}) {
    EXPECT_EQ(rig_.Weights(block), alone.Weights(block));
  }
}

TEST_F(QuorumShard, WhatAStepWasClosedWithCountsAlsoOfOneWhoDiesBeforeItIsMade) {
  PushAll(0, 0);
  PushAll(1, 0);
  Lines(rig_.shard().Apply(ShardPrepare{2}));
  EXPECT_THAT(Lines(Close(0, {10, 11})), IsEmpty()) << "an epoch is about to change";
  EXPECT_THAT(PushAll(2, 0), ElementsAre("refuse r2 too late", "refuse r2 too late"));
  EXPECT_THAT(Lines(rig_.Commit(2, {rig_.Member(0), rig_.Member(2)})),
              Contains("applied b0 s0 by r0 r1"));
}

TEST_F(QuorumShard, WhoDiesIsNamedNoMoreAndFewerAreEnoughWhereFewerAreLeft) {
  PushAll(0, 0);
  PushAll(1, 0);
  EXPECT_THAT(Lines(rig_.Commit(2, {rig_.Member(0), rig_.Member(2)})),
              ElementsAre("committed e2"))
      << "one of two is not enough";
  EXPECT_THAT(Lines(rig_.Commit(3, {rig_.Member(0)})),
              ElementsAre("committed e3", "held s0 of 10"));
  EXPECT_THAT(Lines(rig_.Commit(4, {rig_.Member(3, 1)})),
              ElementsAre("committed e4", "held s0 of"))
      << "nobody can give to it";
  EXPECT_THAT(Lines(Close(0, {})), Contains("applied b0 s0 skipped"));
}

TEST_F(QuorumShard, WhatALeaverHandsOverIsOfTheStepThatTheBlockMakesNext) {
  const Reference::Push kept = {SomeValues(100, 9), 4};
  PushAll(0, 0);
  PushAll(1, 0);
  Close(0, {10, 11});
  const auto part = [&](uint64_t step) {
    return Lines(rig_.shard().Apply(rig_.PartingMessage(2, 0, step, kept)));
  };
  EXPECT_THAT(part(0), ElementsAre("refuse r2 too late"));
  EXPECT_THAT(part(1), ElementsAre("ack r2 b0 s1"));
  PushAll(0, 1);
  PushAll(1, 1);
  const std::vector<std::string> closed = Lines(Close(1, {10, 11}));
  EXPECT_THAT(closed, Contains("applied b0 s1 by r0 r1 r2"));
  EXPECT_THAT(closed, Contains("applied b1 s1 by r0 r1"));
  EXPECT_THAT(closed, Not(Contains("refuse r2 too late")));
  EXPECT_THAT(part(1), Contains("ack r2 b0 s1")) << "counted, and asked again";
}

TEST_F(QuorumShard, NobodyOwesAnythingOnceThereAreEnough) {
  const auto owed = [&] {
    std::vector<uint32_t> all;
    for (const auto& member : rig_.shard().Progress().members) all.push_back(member.owed);
    return all;
  };
  PushAll(0, 0);
  EXPECT_THAT(owed(), ElementsAre(0, 2, 2));
  PushAll(1, 0);
  EXPECT_THAT(owed(), ElementsAre(0, 0, 0));
}

TEST(QuorumRecords, AStepOfAQuorumIsReplayedWithItsContributors) {
  RigOptions options;
  options.codec = "fp32";
  options.training.mode = {.name = "bsp", .values = {{"quorum", 1}}};
  options.records = Records::kKept;
  ShardRig rig{options};
  std::vector<std::shared_ptr<const ShardRecord>> records;
  const auto keep = [&](const ShardOutputs& outputs) {
    for (const ShardOutput& output : outputs) {
      if (const auto* kept = std::get_if<ShardRecorded>(&output)) {
        records.push_back(kept->record);
      }
    }
  };
  rig.Commit(1, {rig.Member(0), rig.Member(1)});
  keep(rig.Seed(0, SomeValues(100, 1)));
  rig.Push(0, 0, 0);
  rig.Push(1, 0, 0);
  keep(rig.shard().Apply(ShardClosed{0, {11}}));
  ShardRig again{options};
  std::vector<std::string> lines;
  for (const auto& record : records) {
    const auto outputs = again.shard().Replay(*record);
    ASSERT_TRUE(outputs.ok()) << outputs.status();
    for (std::string& line : Lines(*outputs)) lines.push_back(std::move(line));
  }
  EXPECT_THAT(lines, UnorderedElementsAre("applied b0 s0 by r1"));
  EXPECT_EQ(again.Weights(0), rig.Weights(0));
}

}  // namespace
}  // namespace syncline
