// Journals of jobs that also have backups (ADR 38): which generation counts, and when one
// that starts over is whole.
#include <filesystem>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "comm/base/temp_directory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/journal/folder.h"
#include "server/journal/journal.h"
#include "server/journal/restore.h"
#include "server/journal/run.h"
#include "server/shard/shard_test_util.h"

namespace syncline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(Generations, StandInNames) {
  const std::string name = SegmentName(3, 1, SegmentKind::kAnew, 17);
  EXPECT_EQ(name, "shard-00003-g17-000001-anew.journal");
  const auto place = ParseSegmentName(name);
  ASSERT_TRUE(place.has_value());
  EXPECT_EQ(place->shard, 3u);
  EXPECT_EQ(place->generation, 17u);
  EXPECT_EQ(place->number, 1u);
  EXPECT_EQ(place->kind, SegmentKind::kAnew);
  EXPECT_TRUE(BeginsAnew("/data/" + name));
  EXPECT_EQ(SegmentName(3, 1), "shard-00003-000001.journal");
  EXPECT_EQ(ParseSegmentName("shard-00003-000001.journal")->generation, 0u);
  EXPECT_FALSE(ParseSegmentName("shard-00003-g0-000001.journal").has_value());
  EXPECT_EQ(LockName(3), "shard-00003.lock");
  EXPECT_EQ(LockName(3, 17), "shard-00003-g17.lock");
}

// Two shards; segments without records.
class GenerationsOnDisk : public ::testing::Test {
 protected:
  std::string Write(uint32_t shard, uint32_t number, SegmentKind kind,
                    uint32_t generation) {
    const std::string folder = directory_.path() + "/night/run1";
    EXPECT_TRUE(MakeFolder(folder).ok());
    std::string path = folder + "/" + SegmentName(shard, number, kind, generation);
    EXPECT_TRUE(SegmentWriter::Create(path, {.job = "night", .shard = shard}).ok());
    return path;
  }
  JournalRun Find() { return *FindRun({directory_.path()}, "night"); }

  TempDirectory directory_;
};

TEST_F(GenerationsOnDisk, TheHighestThatIsWholeCounts) {
  const std::string first = Write(0, 1, SegmentKind::kGoesOn, 0);
  const std::string begun = Write(0, 1, SegmentKind::kBegun, 9);
  EXPECT_THAT(Find().shards.at(0), ElementsAre(first));
  EXPECT_THAT(Find().superseded.at(0), ElementsAre(begun));
  const std::string anew = Write(0, 1, SegmentKind::kAnew, 5);
  const std::string more = Write(0, 2, SegmentKind::kGoesOn, 5);
  EXPECT_THAT(Find().shards.at(0), ElementsAre(anew, more));
  EXPECT_EQ(Find().generations.at(0), 5u);
  const std::vector<RunOnDisk> listed = ListRuns(directory_.path());
  ASSERT_EQ(listed.size(), 1u);
  EXPECT_THAT(listed[0].shards, ElementsAre(0));
  EXPECT_THAT(listed[0].generations, ElementsAre(5));
}

TEST_F(GenerationsOnDisk, WhatIsNotWholeIsNothing) {
  Write(0, 1, SegmentKind::kBegun, 9);
  Write(1, 1, SegmentKind::kGoesOn, 0);
  const std::vector<RunOnDisk> listed = ListRuns(directory_.path());
  ASSERT_EQ(listed.size(), 1u);
  EXPECT_THAT(listed[0].shards, ElementsAre(1));
}

TEST_F(GenerationsOnDisk, OnlyTheOneThatIsWantedIsRestored) {
  Write(0, 1, SegmentKind::kAnew, 5);
  const auto open = [&](uint32_t generation) {
    return RunRestore::Open({.directory = directory_.path(),
                             .job = "night",
                             .run = "run1",
                             .shards = {0},
                             .generation = generation})
        .status();
  };
  EXPECT_TRUE(open(5).ok()) << open(5);
  for (const uint32_t other : {0u, 4u, 6u}) {
    EXPECT_TRUE(absl::IsFailedPrecondition(open(other))) << open(other);
    EXPECT_THAT(open(other).ToString(), HasSubstr("has generation 5"));
  }
}

// A shard of two blocks and two workers, whose journal starts over after a take-over.
class TakenOver : public ::testing::Test {
 protected:
  static constexpr uint32_t kJob = 7;

  TakenOver() {
    journal_
        .Begin({.job = kJob,
                .head = {.job = "night", .shard = 3},
                .blocks = {{0, 1}},
                .trained = {{0, 1}},
                .may_begin_anew = true,
                .is_fenced = true,
                .generation = 17,
                .begins_anew = true,
                .run = "run1"})
        .IgnoreError();
    rig_.Commit(1, {rig_.Member(0), rig_.Member(1)});
    for (uint32_t block = 0; block < 2; ++block) {
      rig_.Seed(block, SomeValues(rig_.range(block).elements, block));
    }
    Step();
  }
  void Step() {
    for (uint32_t block = 0; block < 2; ++block) {
      for (const uint32_t rank : {0u, 1u}) Do(rig_.Push(rank, block, step_));
    }
    ++step_;
  }
  void Do(const ShardOutputs& outputs) {
    uint64_t taken = 0;
    for (const ShardOutput& output : outputs) {
      if (const auto* one = std::get_if<ShardBackedUp>(&output)) has_more_ = one->more;
      const auto* kept = std::get_if<ShardRecorded>(&output);
      if (kept == nullptr) continue;
      journal_.Take(kJob, 0, kept->record);
      ++taken;
    }
    if (taken == 0) return;
    taken_ += taken;
    Await([this] { return durable_ >= taken_; });
    Do(rig_.shard().Apply(ShardDurable{taken_}));
  }
  template <typename Condition>
  void Await(const Condition& condition) {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&condition));
  }
  void BeginAnew() {
    Await([this] { return has_room_; });
    ASSERT_TRUE(journal_.BeginAnew(kJob, 0));
    Do(rig_.shard().Apply(ShardBackUp{}));
    while (has_more_) Do(rig_.shard().Apply(ShardBackUp{ShardBackUp::Kind::kNext}));
    journal_.Whole(kJob, 0);
  }
  std::vector<uint32_t> Generations() {
    const auto listed = ListRuns(directory_.path());
    return listed.empty() ? std::vector<uint32_t>() : listed[0].generations;
  }

  TempDirectory directory_;
  ShardRig rig_{{.codec = "bf16", .tensors = {300, 20}}};
  absl::Mutex mutex_;
  bool has_room_ = false;
  uint32_t whole_ = 0;  // generation
  uint64_t durable_ = 0;
  uint64_t taken_ = 0;
  uint64_t step_ = 0;
  bool has_more_ = false;
  Journal journal_{{.directory = directory_.path(),
                    .retry = absl::ZeroDuration(),
                    .on_durable =
                        [this](uint32_t, uint32_t, uint64_t records) {
                          absl::MutexLock lock(&mutex_);
                          durable_ = records;
                        },
                    .on_room =
                        [this](uint32_t) {
                          absl::MutexLock lock(&mutex_);
                          has_room_ = true;
                        },
                    .on_whole =
                        [this](uint32_t, uint32_t generation) {
                          absl::MutexLock lock(&mutex_);
                          whole_ = generation;
                        }}};
};

TEST_F(TakenOver, IsWholeOnceNoBlockOfTheJobCanBeBehind) {
  const std::string folder = directory_.path() + "/night/run1";
  ASSERT_TRUE(MakeFolder(folder).ok());
  const std::string earlier = folder + "/" + SegmentName(3, 1);
  ASSERT_TRUE(SegmentWriter::Create(earlier, {.job = "night", .shard = 3}).ok());
  EXPECT_THAT(journal_.State(kJob)->error, HasSubstr("take-over"));
  BeginAnew();
  EXPECT_THAT(Generations(), ElementsAre(0));
  Step();
  EXPECT_THAT(Generations(), ElementsAre(0));  // one step is not enough
  EXPECT_TRUE(std::filesystem::exists(earlier));
  Step();
  Await([this] { return whole_ == 17; });
  EXPECT_THAT(Generations(), ElementsAre(17));
  EXPECT_THAT(journal_.State(kJob)->error, IsEmpty());
  EXPECT_FALSE(std::filesystem::exists(earlier));
}

}  // namespace
}  // namespace syncline
