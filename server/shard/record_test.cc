// A replay of a shard's records gives the same shard.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/shard/record.h"
#include "server/shard/recorded_job_test_util.h"
#include "server/shard/shard_test_util.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;

class Recorded : public ::testing::TestWithParam<RecordCase> {};

TEST_P(Recorded, AShardReplayedIsThatShard) {
  const RecordCase& one = GetParam();
  RecordedJob job(one);
  for (uint64_t step = 0; step < 6; ++step) job.Step(step);
  ExpectReplayed(job, one);
}

// The cut was made while a seeder was sending state. That seeder died, and the next one
// brought no state.
TEST(Records, OfABlockThatBeganWithoutStateClearWhatItHad) {
  const RecordCase one = {.training = {.optimizer = {.name = "adamw"}}, .tensors = {300}};
  const auto seed = [](ShardRig& rig, MessageKind kind, uint32_t updates) {
    ShardMessage message = rig.SeedMessage(0, 0, SomeValues(300, 1));
    message.header.kind = static_cast<uint16_t>(kind);
    message.header.shard = updates;
    return rig.shard().Apply(message);
  };
  ShardRig rig(OptionsFor(one, Records::kKept)), again(OptionsFor(one, Records::kNone));
  rig.Commit(1, {rig.Member(0)});
  seed(rig, MessageKind::kSeedState, 9);
  ASSERT_TRUE(again.shard().Load(*rig.shard().Save()).ok());
  for (const ShardOutput& output : seed(rig, MessageKind::kSeed, 0)) {
    const auto* kept = std::get_if<ShardRecorded>(&output);
    if (kept == nullptr) continue;
    EXPECT_EQ(std::get<SeedRecord>(kept->record->what).updates, 0u);
    ASSERT_TRUE(again.shard().Replay(*kept->record).ok());
  }
  EXPECT_EQ(again.shard().Save()->blocks, rig.shard().Save()->blocks);
  EXPECT_TRUE(again.shard().Save()->blocks.at(0).seeded);
}

INSTANTIATE_TEST_SUITE_P(Families, Recorded,
                         ::testing::ValuesIn(AllOptimizersAndCodecs()));

class RecordedLife : public ::testing::TestWithParam<LifeCase> {};

TEST_P(RecordedLife, MembersComeAndGoAndStepsAreSkipped) {
  const RecordCase one = JobOf(GetParam());
  RecordedJob job(one);
  LiveThroughALot(job, one.training);
  ExpectReplayed(job, one);
}

INSTANTIATE_TEST_SUITE_P(Settings, RecordedLife, ::testing::ValuesIn(LifeCases()));

TEST(RecordedModes, StepsAheadAreRecordedWhenTheyAreMade) {
  RecordCase one = {.training = Momentum()};
  one.training.mode = {.name = "ssp", .values = {{"staleness", 3}}};
  RecordedJob job(one);
  for (uint64_t step = 0; step < 4; ++step) {
    job.ForEachBlock([&](uint32_t block) { job.Push(0, block, step); });
  }
  EXPECT_EQ(job.records().size(), 3u) << "seeds";
  job.Commit(2, {ShardRig::Member(0), ShardRig::Member(1)});  // frames of another epoch
  for (uint64_t step = 0; step < 4; ++step) {
    job.ForEachBlock([&](uint32_t block) { job.Push(1, block, step); });
  }
  ExpectReplayed(job, one);
}

TEST(RecordedModes, ContributionsOfTheirOwnAreReplayedWithTheirAge) {
  for (const double compensation : {0.0, 0.04}) {
    RecordCase one = {.training = Momentum()};
    one.training.mode = {.name = "asp",
                         .values = {{"age_power", 1}, {"compensation", compensation}}};
    RecordedJob job(one);
    for (uint64_t step = 0; step < 4; ++step) {
      job.ForEachBlock([&](uint32_t block) {
        job.Push(0, block, 2 * step);
        job.Push(0, block, 2 * step + 1);
        step == 2 ? job.Skip(1, block, step) : job.Push(1, block, step);
      });
    }
    ExpectReplayed(job, one);
  }
}

TEST(Records, AreNotMadeUnlessTheyAreAskedFor) {
  ShardRig rig(OptionsFor({.name = "none"}, Records::kNone));
  rig.Commit(1, {rig.Member(0)});
  EXPECT_THAT(Lines(rig.Seed(0, SomeValues(300, 1))),
              ::testing::ElementsAre("ack r0 b0 s0"));
  EXPECT_THAT(Lines(rig.Push(0, 0, 0)), ::testing::Not(::testing::Contains("recorded")));
}

TEST(Records, HoldTheSmallerOfContributionsAndTheirSum) {
  const auto bytes_of = [](const char* push) {
    RecordCase one = {.training = Momentum(), .push = push, .tensors = {100'000}};
    RecordedJob job(one);
    job.Step(0);
    return std::get<StepRecord>(job.records().back()->what).payload.size;
  };
  EXPECT_EQ(bytes_of("fp32"), 400'000u);
  EXPECT_LT(bytes_of("onebit:min_elements=0,vectors=1"), 2 * 15'000u);
}

class WrongRecords : public ::testing::Test {
 protected:
  WrongRecords() : job_(one_) {
    job_.Step(0);
    job_.Step(1);
    for (const auto& record : job_.records()) {
      if (std::holds_alternative<SeedRecord>(record->what)) {
        EXPECT_TRUE(again_.shard().Replay(*record).ok());
      } else if (std::get<StepRecord>(record->what).block == 0) {
        steps_.push_back(std::get<StepRecord>(record->what));
      }
    }
  }
  absl::Status Replay(const StepRecord& record) {
    return again_.shard().Replay(ShardRecord{1, record}).status();
  }

  const RecordCase one_ = {.training = Momentum(),
                           .push = "topk:min_elements=0,vectors=1,ratio=0.05"};
  RecordedJob job_;
  ShardRig again_{OptionsFor(one_, Records::kNone)};
  std::vector<StepRecord> steps_;  // of block 0
};

TEST_F(WrongRecords, AreRefusedOutOfOrder) {
  EXPECT_THAT(Replay(steps_[1]).ToString(),
              HasSubstr("for step 1 does not fit: the block is at step 0"));
  EXPECT_TRUE(Replay(steps_[0]).ok());
  EXPECT_EQ(Replay(steps_[0]).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(WrongRecords, AreRefusedAndChangeNothing) {
  StepRecord other_block = steps_[0];
  other_block.block = 99;
  StepRecord no_payload = steps_[0];
  no_payload.payload = {};
  StepRecord no_worker = steps_[0];
  no_worker.parts[0].from.rank = 4'000'000'000;
  StepRecord other_mode = steps_[0];
  other_mode.arrival = ShardApplied::Arrival{};
  StepRecord short_sum = steps_[0];
  short_sum.holds = StepRecord::Payload::kGradient;
  StepRecord no_accumulator = steps_[0];
  no_accumulator.holds = StepRecord::Payload::kSum;
  for (const StepRecord& wrong :
       {other_block, no_payload, no_worker, other_mode, short_sum, no_accumulator}) {
    EXPECT_FALSE(Replay(wrong).ok());
  }
  for (const StepRecord& right : steps_) EXPECT_TRUE(Replay(right).ok());
  EXPECT_EQ(again_.shard().block_digest(0), job_.rig().shard().block_digest(0));
}

TEST_F(WrongRecords, AreRefusedByAShardThatHasMembers) {
  again_.Commit(2, {again_.Member(0)});
  EXPECT_THAT(Replay(steps_[0]).ToString(), HasSubstr("members"));
}

}  // namespace
}  // namespace syncline
