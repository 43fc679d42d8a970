// A shard whose records are awaited: no worker learns of what could still be lost, and
// what is lost is made again.
#include <algorithm>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/shard/record.h"
#include "server/shard/shard_test_util.h"

namespace syncline {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

RigOptions Awaited(TrainingSettings training = {}) {
  return {.codec = "bf16",
          .training = std::move(training),
          .tensors = {100, 20},
          .records = Records::kAwaited};
}

// Two workers, two blocks.
class AwaitedJob {
 public:
  explicit AwaitedJob(const RigOptions& options = Awaited()) : rig_(options) {
    Do(rig_.Commit(1, {rig_.Member(0), rig_.Member(1)}));
  }
  // Replaces one that died, with its first `records` records.
  AwaitedJob(const AwaitedJob& lost, size_t records) : rig_(Awaited()) {
    for (size_t i = 0; i < records; ++i) {
      EXPECT_TRUE(rig_.shard().Replay(*lost.records()[i]).ok());
    }
    rig_.shard().BeginAgain();
  }

  ShardRig& rig() { return rig_; }
  const std::vector<std::shared_ptr<const ShardRecord>>& records() const {
    return records_;
  }

  // Returns the outputs without the records, which it collects.
  std::vector<std::string> Do(const ShardOutputs& outputs) {
    for (const ShardOutput& output : outputs) {
      if (const auto* one = std::get_if<ShardRecorded>(&output)) {
        records_.push_back(one->record);
      }
    }
    std::vector<std::string> lines = Lines(outputs);
    std::erase(lines, "recorded");
    return lines;
  }
  std::vector<std::string> Sync() { return Sync(records_.size()); }
  std::vector<std::string> Sync(uint64_t records) {
    return Do(rig_.shard().Apply(ShardDurable{records}));
  }
  void SeedAll() {
    for (uint32_t block = 0; block < 2; ++block) {
      Do(rig_.Seed(block, SomeValues(rig_.range(block).elements, block)));
    }
    Sync();
  }
  std::vector<std::string> PushAll(uint64_t step, uint32_t block) {
    std::vector<std::string> all = Do(rig_.Push(0, block, step));
    std::ranges::move(Do(rig_.Push(1, block, step)), std::back_inserter(all));
    return all;
  }

 private:
  ShardRig rig_;
  std::vector<std::shared_ptr<const ShardRecord>> records_;
};

// The journal has ended, or the backup is lost: the job continues for any number of
// steps.
TEST(AwaitedRecords, NothingWaitsOnceNobodyKeepsThem) {
  AwaitedJob job;
  job.SeedAll();
  job.Sync(~uint64_t{0});
  for (uint64_t step = 0; step < 3; ++step) {
    for (const uint32_t block : {0u, 1u}) {
      EXPECT_THAT(job.PushAll(step, block),
                  Contains(absl::StrCat("publish r0 b", block, " v", step + 1)));
    }
  }
}

TEST(AwaitedRecords, ASeedIsHeldOnceItIsSafe) {
  AwaitedJob job;
  // Both are told that an answer will come, because the record may take long.
  EXPECT_THAT(job.Do(job.rig().Seed(0, SomeValues(100, 1))),
              ElementsAre("noted r0 b0 v0"));
  EXPECT_THAT(job.Do(job.rig().Pull(1, 0, 0)), ElementsAre("noted r1 b0 v0"));
  EXPECT_THAT(job.Sync(), ElementsAre("ack r0 b0 s0", "publish r1 b0 v0"));
}

TEST(AwaitedRecords, NobodyHearsOfAStepThatCouldBeLost) {
  AwaitedJob job;
  job.SeedAll();
  EXPECT_THAT(job.PushAll(0, 0),
              ElementsAre("ack r0 b0 s0", "ack r1 b0 s0", "applied b0 s0 by r0 r1"));
  EXPECT_EQ(job.rig().shard().block_version(0), 1u);
  // A worker that asks again gets an acknowledgement and nothing more.
  EXPECT_THAT(job.Do(job.rig().Push(0, 0, 0)), ElementsAre("ack r0 b0 s0"));
  EXPECT_THAT(job.Do(job.rig().Pull(1, 0, 1)), ElementsAre("noted r1 b0 v1"));
  EXPECT_THAT(job.Sync(job.records().size() - 1), IsEmpty());
  EXPECT_THAT(job.Sync(), ElementsAre("publish r0 b0 v1", "publish r1 b0 v1",
                                      "publish r0 b0 v1", "publish r1 b0 v1"));
}

TEST(AwaitedRecords, ABlockDoesNotWaitForTheRecordOfAnother) {
  AwaitedJob job;
  job.SeedAll();
  job.PushAll(0, 0);
  const uint64_t first = job.records().size();
  job.PushAll(0, 1);
  EXPECT_THAT(job.Sync(first), ElementsAre("publish r0 b0 v1", "publish r1 b0 v1"));
  EXPECT_THAT(job.Sync(), ElementsAre("publish r0 b1 v1", "publish r1 b1 v1"));
}

// Steps in which no present member takes part pass by themselves, but one at a time.
TEST(AwaitedRecords, ABlockIsNeverTwoStepsAheadOfItsRecords) {
  AwaitedJob job;
  job.SeedAll();
  job.Do(job.rig().Commit(2, {job.rig().Member(0, 3)}));
  EXPECT_EQ(job.rig().shard().block_version(0), 1u);
  job.Sync();
  EXPECT_EQ(job.rig().shard().block_version(0), 2u);
  job.Sync();
  EXPECT_EQ(job.rig().shard().block_version(0), 3u);
}

TEST(AwaitedRecords, NewSettingsAreCommittedOnceTheyAreSafe) {
  AwaitedJob job;
  job.SeedAll();
  TrainingSettings slower = Awaited().training;
  slower.optimizer.options["lr"] = 0.001;
  EXPECT_THAT(job.Do(job.rig().shard().Apply(
                  ShardCommit{2, {job.rig().Member(0), job.rig().Member(1)}, slower, 1})),
              IsEmpty());
  EXPECT_THAT(job.Sync(), ElementsAre("committed e2"));
}

TEST(AwaitedRecords, OneThatComesBackHasAllThatAnybodyKnowsOf) {
  AwaitedJob lost;
  lost.SeedAll();
  lost.PushAll(0, 0);
  lost.PushAll(0, 1);
  lost.Sync();
  const size_t safe = lost.records().size();
  lost.PushAll(1, 0);  // no worker is told
  const std::vector<float> undisturbed = lost.rig().Weights(0);

  AwaitedJob back(lost, safe);
  EXPECT_EQ(back.rig().shard().block_version(0), 1u);
  // The commit may be of any epoch, also of one that the records had seen.
  EXPECT_THAT(back.Do(back.rig().Commit(1, {back.rig().Member(0), back.rig().Member(1)})),
              ElementsAre("committed e1"));
  EXPECT_THAT(back.PushAll(1, 0),
              ElementsAre("ack r0 b0 s1", "ack r1 b0 s1", "applied b0 s1 by r0 r1"));
  EXPECT_THAT(back.Sync(), ElementsAre("publish r0 b0 v2", "publish r1 b0 v2"));
  EXPECT_EQ(back.rig().Weights(0), undisturbed);
}

// The decision is repeated; the other shards have made the step with it.
TEST(AwaitedRecords, ADecisionWaitsForTheBlocksThatLostTheirStep) {
  const RigOptions decided = Awaited(Decided());
  AwaitedJob job(decided);
  job.SeedAll();
  job.PushAll(0, 0);
  EXPECT_THAT(job.Do(job.rig().shard().Apply(ShardDecision{.step = 0})), IsEmpty());
  EXPECT_EQ(job.rig().shard().block_version(0), 0u);
  EXPECT_THAT(job.PushAll(0, 1), Contains("applied b0 s0 by r0 r1"));
  EXPECT_EQ(job.rig().shard().block_version(0), 1u);
  EXPECT_EQ(job.rig().shard().block_version(1), 1u);
}

}  // namespace
}  // namespace syncline
