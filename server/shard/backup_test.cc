// A new backup of a running shard receives enough to become that shard, although the
// shard continues meanwhile.
#include <algorithm>
#include <iterator>
#include <string>
#include <variant>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/shard/record.h"
#include "server/shard/recorded_job_test_util.h"
#include "server/shard/shard_test_util.h"

namespace syncline {
namespace {

using ::testing::Contains;
using ::testing::Not;

class NewBackup : public ::testing::TestWithParam<RecordCase> {};

TEST_P(NewBackup, OfAJobThatGoesOnMeanwhile) {
  const RecordCase& one = GetParam();
  RecordedJob job(one);
  for (uint64_t step = 0; step < 3; ++step) job.Step(step);
  job.BackUp();
  for (uint64_t step = 3; step < 10; ++step) job.Step(step);
  ASSERT_TRUE(job.is_backed_up());
  ExpectReplayed(job, one);
}

INSTANTIATE_TEST_SUITE_P(Families, NewBackup,
                         ::testing::ValuesIn(AllOptimizersAndCodecs()));

class NewBackupOfLife : public ::testing::TestWithParam<LifeCase> {};

// The backup may begin at any time: also in the middle of a step, before the first
// values, and after a leaving worker handed over what it had kept.
TEST_P(NewBackupOfLife, BegunAtAnyTime) {
  const RecordCase one = JobOf(GetParam());
  for (int begins = 1; begins < 60; begins += 2) {
    SCOPED_TRACE(begins);
    RecordedJob job(one, begins);
    LiveThroughALot(job, one.training);
    for (uint64_t step = 9; step < 20; ++step) job.Step(step);
    ASSERT_TRUE(job.is_backed_up());
    ExpectReplayed(job, one);
  }
}

INSTANTIATE_TEST_SUITE_P(Settings, NewBackupOfLife, ::testing::ValuesIn(LifeCases()));

// Two workers, two blocks, Records::kNone.
class JobWithoutBackup : public ::testing::Test {
 protected:
  JobWithoutBackup() : rig_({.codec = "bf16", .tensors = {100, 20}}) {
    rig_.Commit(1, {rig_.Member(0), rig_.Member(1)});
    for (uint32_t block = 0; block < 2; ++block) {
      rig_.Seed(block, SomeValues(rig_.range(block).elements, block));
    }
    Step(0);
  }
  std::vector<std::string> Step(uint64_t step) {
    std::vector<std::string> lines;
    for (uint32_t block = 0; block < 2; ++block) {
      for (uint32_t rank = 0; rank < 2; ++rank) {
        std::ranges::copy(Lines(rig_.Push(rank, block, step)), std::back_inserter(lines));
      }
    }
    return lines;
  }
  std::vector<std::string> Do(const ShardInput& input) {
    return Lines(rig_.shard().Apply(input));
  }
  static size_t Published(const std::vector<std::string>& lines) {
    return std::ranges::count_if(
        lines, [](const std::string& line) { return line.starts_with("publish"); });
  }

  ShardRig rig_;
};

TEST_F(JobWithoutBackup, TellsNobodyOfWhatANewOneMayLack) {
  EXPECT_THAT(Do(ShardBackUp{}), Not(Contains("backed up"))) << "it has to get there";
  // It is not yet block 1's turn.
  EXPECT_EQ(Published(Step(1)), 2u);
  EXPECT_EQ(rig_.shard().block_version(0), 1u) << "it waits for its records";
  const std::vector<std::string> lines = Do(ShardDurable{100});
  EXPECT_THAT(lines, Contains("backed up, more"));
  EXPECT_EQ(rig_.shard().block_version(0), 2u);
}

TEST_F(JobWithoutBackup, GoesOnWhenANewOneIsLostAndTakesTheNext) {
  Do(ShardBackUp{});
  Step(1);
  Do(ShardDurable{~uint64_t{0}});
  EXPECT_EQ(Published(Step(2)), 4u);
  EXPECT_THAT(Step(3), Not(Contains("recorded")));
  EXPECT_THAT(Do(ShardBackUp{}), Contains("recorded"));
  EXPECT_THAT(Do(ShardDurable{2}), Contains("backed up, more"));
  Do(ShardBackUp{ShardBackUp::Kind::kNext});
  EXPECT_THAT(Do(ShardDurable{3}), Contains("backed up"));
}

// The worker that handed it over is gone and cannot push it again.
TEST_F(JobWithoutBackup, WhatALeaverHandedOverIsInIt) {
  rig_.shard().Apply(rig_.PartingMessage(1, 0, 1, rig_.PushOf(1, 0, 1)));
  const ShardOutputs outputs = rig_.shard().Apply(ShardBackUp{});
  ShardRig backup({.codec = "bf16", .tensors = {100, 20}});
  for (const ShardOutput& output : outputs) {
    const auto* recorded = std::get_if<ShardRecorded>(&output);
    if (recorded != nullptr) {
      ASSERT_TRUE(backup.shard().Replay(*recorded->record).ok());
    }
  }
  backup.shard().BeginAgain();
  rig_.shard().Apply(ShardDurable{~uint64_t{0}});
  for (ShardRig* rig : {&rig_, &backup}) {
    rig->Commit(2, {ShardRig::Member(0)});
    rig->Push(0, 0, 1);
    EXPECT_EQ(rig->shard().block_version(0), 2u);
  }
  EXPECT_EQ(backup.Weights(0), rig_.Weights(0));
}

// The worker pushes again to the server that takes over.
TEST(NewBackupOfAShard, BeginsWithoutWhatWasAddedToASumWhenItCame) {
  ShardRig rig({.training = {.aggregation = Aggregation::kArrival}});
  rig.Commit(1, {ShardRig::Member(0), ShardRig::Member(1)});
  rig.Seed(0, SomeValues(100, 1));
  rig.Push(0, 0, 0);
  EXPECT_THAT(Lines(rig.shard().Apply(ShardBackUp{})), Not(Contains("recorded")));
  EXPECT_THAT(Lines(rig.Push(1, 0, 0)), Contains("recorded"));
}

// The settings changed before the first step was made: the job was declared with others.
TEST(NewBackupOfAShard, HasSettingsThatHoldFromTheFirstStepOn) {
  ShardRig rig({});
  rig.Commit(1, {ShardRig::Member(0)});
  rig.Seed(0, SomeValues(100, 1));
  ShardCommit commit{.epoch = 2, .members = {ShardRig::Member(0)}};
  commit.training = TrainingSettings{};
  commit.training->optimizer.options["lr"] = 0.5;
  rig.shard().Apply(commit);
  rig.Push(0, 0, 0);
  std::vector<uint64_t> from;
  for (const ShardOutput& output : rig.shard().Apply(ShardBackUp{})) {
    const auto* recorded = std::get_if<ShardRecorded>(&output);
    if (recorded == nullptr) continue;
    const auto* change = std::get_if<SettingsRecord>(&recorded->record->what);
    if (change != nullptr) from.push_back(change->from);
  }
  EXPECT_EQ(from, std::vector<uint64_t>{0});
}

TEST(NewBackupOfAShard, WithoutBlocksIsThereAtOnce) {
  ShardRig rig({.tensors = {}});
  rig.shard().Apply(ShardBackUp{});
  EXPECT_THAT(Lines(rig.shard().Apply(ShardDurable{1})), Contains("backed up"));
}

}  // namespace
}  // namespace syncline
