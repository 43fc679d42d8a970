// What a shard reports about its members' progress.
#include <gtest/gtest.h>

#include "server/shard/shard_test_util.h"

namespace syncline {
namespace {

// Two tensors of one block each; ranks 0 and 1.
class ProgressTest : public ::testing::Test {
 protected:
  explicit ProgressTest(const TrainingSettings& training = {})
      : rig_({.codec = "fp32", .training = training, .tensors = {100, 50}}) {
    rig_.Commit(1, {ShardRig::Member(0), ShardRig::Member(1)});
  }
  void SeedAll() {
    for (const uint32_t block : {0u, 1u}) {
      rig_.Seed(block, SomeValues(rig_.range(block).elements, block));
    }
  }
  ShardProgress Now() { return rig_.shard().Progress(); }
  ShardProgress::Member Of(uint32_t rank) { return Now().members.at(rank); }

  ShardRig rig_;
};

TEST_F(ProgressTest, BlocksWithoutValuesAreSaid) {
  EXPECT_EQ(Now().unseeded, 2u);
  EXPECT_EQ(Now().trained, 2u);
  SeedAll();
  EXPECT_EQ(Now().unseeded, 0u);
}

TEST_F(ProgressTest, NobodyOwesWhatNobodyWaitsFor) {
  SeedAll();
  EXPECT_EQ(Now().waited_for, 0u);
  EXPECT_EQ(Of(0).owed, 0u);
  EXPECT_EQ(Of(1).owed, 0u);
}

TEST_F(ProgressTest, AContributionMakesTheOthersOwe) {
  SeedAll();
  rig_.Push(0, 0, 0);
  rig_.Push(0, 1, 0);
  rig_.Push(1, 1, 0);  // completes block 1
  EXPECT_EQ(Now().waited_for, 1u);
  EXPECT_EQ(Now().step, 0u);
  EXPECT_EQ(Now().completed, 1u);
  EXPECT_EQ(Of(0).owed, 0u);
  EXPECT_EQ(Of(0).waits, 1u);
  EXPECT_EQ(Of(1).owed, 1u);
  EXPECT_EQ(Of(1).waits, 0u);
  rig_.Push(1, 0, 0);
  EXPECT_EQ(Now().step, 1u);
  EXPECT_EQ(Of(1).owed, 0u);
}

TEST_F(ProgressTest, AJoinersWishMakesTheOthersOwe) {
  SeedAll();
  rig_.Commit(
      2, {ShardRig::Member(0), ShardRig::Member(1), ShardRig::Member(2, /*first=*/1)});
  rig_.Pull(2, 0, 1);
  EXPECT_EQ(Of(0).owed, 1u);
  EXPECT_EQ(Of(1).owed, 1u);
  EXPECT_EQ(Of(2).owed, 0u) << "it begins later";
  EXPECT_EQ(Of(2).waits, 1u);
}

TEST_F(ProgressTest, WhatAnEarlierLifeGaveIsNotHeld) {
  SeedAll();
  rig_.Push(0, 0, 0);
  rig_.Push(1, 1, 0);
  ShardMember reborn = ShardRig::Member(1);
  reborn.incarnation = 99;
  rig_.Commit(2, {ShardRig::Member(0), reborn});
  EXPECT_EQ(Now().waited_for, 1u);
  EXPECT_EQ(Of(1).owed, 1u);
  EXPECT_EQ(Of(1).waits, 0u);
  EXPECT_EQ(Of(1).contributed, 1u) << "a count that only grows";
}

TEST_F(ProgressTest, DeliveriesAreMovementOfMembers) {
  SeedAll();
  MessageHeader header = rig_.Header(MessageKind::kPublish, 1, 0, 0);
  rig_.shard().Delivered(header);
  rig_.shard().Delivered(header);
  EXPECT_EQ(Of(1).moved, 1u);
  EXPECT_EQ(Of(1).contributed, 0u);
  header.block = 17;  // unknown block and rank: no effect
  rig_.shard().Delivered(header);
  header = rig_.Header(MessageKind::kPublish, 5, 0, 0);
  rig_.shard().Delivered(header);
  EXPECT_EQ(Of(1).moved, 1u);
  rig_.Push(1, 0, 0);
  rig_.Push(1, 0, 0);  // a repetition
  EXPECT_EQ(Of(1).moved, 2u);
  EXPECT_EQ(Of(1).contributed, 1u);
}

class DecidedProgressTest : public ProgressTest {
 protected:
  DecidedProgressTest() : ProgressTest(Decided()) {}
};

TEST_F(DecidedProgressTest, CompleteBlocksWaitForTheDecisionAndOweNothing) {
  SeedAll();
  rig_.Push(0, 0, 0);
  rig_.Push(1, 0, 0);
  EXPECT_EQ(Now().undecided, 1u);
  EXPECT_EQ(Now().waited_for, 0u);
  EXPECT_EQ(Of(0).owed, 0u);
  EXPECT_EQ(Of(0).waits, 1u);
}

}  // namespace
}  // namespace syncline
