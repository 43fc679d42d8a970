// A server that is started again: its shards are what anybody knows of them, and its journal
// goes on.
#include "server/journal/restore.h"

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "comm/base/temp_directory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/journal/journal.h"
#include "server/shard/shard_test_util.h"

namespace syncline {
namespace {

namespace fs = std::filesystem;

using ::testing::HasSubstr;

constexpr uint32_t kNight = 7;
constexpr uint32_t kShard = 3;

RigOptions NightRig() {
  TrainingSettings training;
  training.optimizer = {.name = "adamw", .options = {{"lr", 0.01}}};
  return {.codec = "bf16",
          .training = std::move(training),
          .tensors = {300, 20},
          .records = Records::kAwaited};
}

// How much of it is on the disk, as the journal says it.
class Durable {
 public:
  void Say(uint64_t records) {
    absl::MutexLock lock(&mutex_);
    records_ = records;
  }
  void Await(uint64_t records) {
    const auto is_there = [this, records]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
      return records_ >= records;
    };
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&is_there));
  }

 private:
  absl::Mutex mutex_;
  uint64_t records_ ABSL_GUARDED_BY(mutex_) = 0;
};

// A shard of two blocks, two workers, and a journal.
class NightJob {
 public:
  NightJob(const std::string& directory, const RigOptions& options)
      : rig_(options),
        journal_({.directory = directory,
                  .on_durable = [this](uint32_t, uint32_t, uint64_t records) {
                    durable_.Say(records);
                  }}) {}

  void Begin(std::vector<ShardTail> tails = {}) {
    JournaledJob job = {.job = kNight,
                        .head = {.job = "night", .shard = kShard},
                        .blocks = {{0, 1}},
                        .trained = {{0, 1}},
                        .run = "run1",
                        .tails = std::move(tails)};
    ASSERT_TRUE(journal_.Begin(std::move(job)).ok());
    Do(rig_.Commit(1, {rig_.Member(0), rig_.Member(1)}));
  }
  void Seed() {
    for (uint32_t block = 0; block < 2; ++block) {
      Do(rig_.Seed(block, SomeValues(rig_.range(block).elements, block)));
    }
  }
  void Step(uint64_t step) {
    for (uint32_t block = 0; block < 2; ++block) {
      for (const uint32_t rank : {0u, 1u}) Do(rig_.Push(rank, block, step));
    }
  }
  Shard& shard() { return rig_.shard(); }
  std::vector<ShardBlock> blocks() const {
    return {{0, rig_.range(0)}, {1, rig_.range(1)}};
  }

 private:
  // All that it says is on the disk before it does anything else.
  void Do(const ShardOutputs& outputs) {
    const uint64_t before = taken_;
    for (const ShardOutput& output : outputs) {
      const auto* kept = std::get_if<ShardRecorded>(&output);
      if (kept == nullptr) continue;
      journal_.Take(kNight, 0, kept->record);
      ++taken_;
    }
    if (taken_ == before) return;
    durable_.Await(taken_);
    Do(rig_.shard().Apply(ShardDurable{taken_}));
  }

  ShardRig rig_;
  Durable durable_;
  uint64_t taken_ = 0;
  Journal journal_;
};

class Restored : public ::testing::Test {
 protected:
  std::string Folder() const { return directory_.path() + "/night/run1"; }
  absl::StatusOr<std::unique_ptr<RunRestore>> Open() {
    return RunRestore::Open({.directory = directory_.path(),
                             .job = "night",
                             .run = "run1",
                             .shards = {kShard}});
  }
  // As many steps, and what is there afterwards.
  ShardSnapshot Train(uint64_t steps) { return TrainIn(directory_, steps); }
  static ShardSnapshot TrainIn(const TempDirectory& directory, uint64_t steps) {
    NightJob job(directory.path(), NightRig());
    job.Begin();
    job.Seed();
    for (uint64_t step = 0; step < steps; ++step) job.Step(step);
    return *job.shard().Save();
  }

  TempDirectory directory_;
};

void ExpectSame(const ShardSnapshot& a, const ShardSnapshot& b) {
  ASSERT_EQ(a.blocks.size(), b.blocks.size());
  for (const auto& [id, block] : a.blocks) EXPECT_TRUE(block == b.blocks.at(id)) << id;
}

TEST_F(Restored, GoesOnAsIfNothingHadHappened) {
  const ShardSnapshot three = Train(3);
  NightJob back(directory_.path(), NightRig());
  {
    const auto run = Open();
    ASSERT_TRUE(run.ok()) << run.status();
    auto tail = (*run)->Play(kShard, back.blocks(), back.shard());
    ASSERT_TRUE(tail.ok()) << tail.status();
    ExpectSame(*back.shard().Save(), three);
    back.Begin({*tail});
  }
  back.Step(3);
  const ShardSnapshot four = *back.shard().Save();

  const TempDirectory other;
  ExpectSame(TrainIn(other, 4), four);
}

TEST_F(Restored, ComesBackFromSeveralSegmentsOverAndOver) {
  ShardSnapshot expected = Train(1);
  for (uint64_t step = 1; step < 4; ++step) {
    NightJob back(directory_.path(), NightRig());
    const auto run = Open();
    ASSERT_TRUE(run.ok()) << run.status();
    auto tail = (*run)->Play(kShard, back.blocks(), back.shard());
    ASSERT_TRUE(tail.ok()) << tail.status();
    EXPECT_EQ(tail->segments.size(), step);
    ExpectSame(*back.shard().Save(), expected);
    back.Begin({*tail});
    back.Step(step);
    expected = *back.shard().Save();
  }
}

TEST_F(Restored, WhatIsTornIsCutAndWrittenAgain) {
  Train(3);
  const std::string segment = Folder() + "/" + SegmentName(kShard, 1);
  fs::resize_file(segment, fs::file_size(segment) - 5);
  NightJob back(directory_.path(), NightRig());
  auto tail = (*Open())->Play(kShard, back.blocks(), back.shard());
  ASSERT_TRUE(tail.ok()) << tail.status();
  EXPECT_EQ(back.shard().block_version(0), 3u);
  EXPECT_EQ(back.shard().block_version(1), 2u);  // it was the last
  EXPECT_EQ(tail->segments[0].bytes, fs::file_size(segment));
  back.Begin({*tail});
  back.Step(2);
  EXPECT_EQ(back.shard().block_version(1), 3u);
}

TEST_F(Restored, NobodyReadsWhatIsStillWritten) {
  NightJob job(directory_.path(), NightRig());
  job.Begin();
  job.Seed();
  const auto run = Open();
  EXPECT_EQ(run.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(run.status().ToString(), HasSubstr("has not ended"));
}

TEST_F(Restored, DamageIsRefusedWithItsPlace) {
  Train(3);
  const std::string segment = Folder() + "/" + SegmentName(kShard, 1);
  std::FILE* file = std::fopen(segment.c_str(), "r+b");
  ASSERT_NE(file, nullptr);
  std::fseek(file, static_cast<long>(fs::file_size(segment) / 2), SEEK_SET);
  std::fputs("damaged", file);
  std::fclose(file);
  NightJob back(directory_.path(), NightRig());
  const auto tail = (*Open())->Play(kShard, back.blocks(), back.shard());
  EXPECT_EQ(tail.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(tail.status().ToString(), HasSubstr(segment));
}

TEST_F(Restored, WhatIsMissingIsNamed) {
  Train(1);
  fs::remove(Folder() + "/" + SegmentName(kShard, 1));
  EXPECT_THAT(Open().status().ToString(), HasSubstr("no journal of job 'night'"));
}

TEST_F(Restored, ADirectorySaysWhichRunsItHas) {
  EXPECT_TRUE(ListRuns(directory_.path()).empty());
  Train(1);
  const std::vector<RunOnDisk> runs = ListRuns(directory_.path());
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_EQ(runs[0].job, "night");
  EXPECT_EQ(runs[0].run, "run1");
  EXPECT_EQ(runs[0].shards, std::vector<uint32_t>{kShard});
}

}  // namespace
}  // namespace syncline
