// A restarted server: its shards have everything that workers know of, and its journal
// continues.
#include "server/journal/restore.h"

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/base/temp_directory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/journal/night_job_test_util.h"

namespace syncline {
namespace {

namespace fs = std::filesystem;

using ::testing::HasSubstr;

class Restored : public ::testing::Test {
 protected:
  std::string Folder() const { return directory_.path() + "/night/run1"; }
  absl::StatusOr<std::unique_ptr<RunRestore>> Open() {
    return RunRestore::Open({.directory = directory_.path(),
                             .job = "night",
                             .run = "run1",
                             .shards = {kShard}});
  }
  // Makes that many steps, and returns the state afterwards.
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
  EXPECT_EQ(back.shard().block_version(1), 2u);  // its record was the last
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
