// A journal that has ended, because its disk was full or failed, starts over.
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/base/temp_directory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/checkpoint/directory_store.h"
#include "server/checkpoint/reader.h"
#include "server/journal/night_job_test_util.h"
#include "server/journal/replay.h"
#include "server/journal/restore.h"

namespace syncline {
namespace {

namespace fs = std::filesystem;

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr uint64_t kSegmentBytes = 4096;  // several segments

// While an object exists, no file of this process grows beyond that many bytes.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) {
    std::signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit = {.rlim_cur = bytes, .rlim_max = before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  }
  ~FullDisk() { setrlimit(RLIMIT_FSIZE, &before_); }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;

 private:
  rlimit before_ = {};
};

constexpr uint64_t kTensors[] = {300, 20};

// Options to replay all of NightRig's journal.
ReplayOptions Replaying(const std::string& directory) {
  const RigOptions rig = NightRig();
  static const CodecRegistry codecs = CodecRegistry::Builtin();
  ShardOptions shard;
  shard.transfers.assign(
      2, {.push = *ParseTransfer(rig.codec), .publish = *ParseTransfer(rig.codec)});
  shard.seed_codec = *codecs.Find(CodecId::kFp32);
  shard.training = rig.training;
  for (const uint64_t elements : kTensors) {
    shard.tensors.push_back({.shape = TensorShape({&elements, 1})});
  }
  auto layout = std::make_shared<CheckpointLayout>();
  layout->tensors = {{"a", {300}}, {"b", {20}}};
  layout->plan = *TrainingPlan::Create(shard.training, shard.tensors);
  return {.run = *FindRun({directory}, "night"),
          .shard = shard,
          .blocks = CutIntoBlocks(kTensors),
          .layout = layout,
          .about = {.job = "night",
                    .push_codec = "bf16",
                    .publish_codec = "bf16",
                    .declared = shard.training,
                    .tensors = layout->tensors},
          .digests = Digests::kCompared};
}

class BegunAnew : public ::testing::Test {
 protected:
  BegunAnew() {
    job_->Begin();
    job_->Seed();
    job_->Step(0);
    {
      const FullDisk full(100);
      for (uint64_t step = 1; step < 4; ++step) job_->Step(step);
      EXPECT_THAT(job_->state().error, HasSubstr("shard-00003-"));
    }
  }
  std::set<std::string> Segments() const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(directory_.path() + "/night/run1")) {
      const std::string name = entry.path().filename().string();
      if (ParseSegmentName(name)) names.insert(name);
    }
    return names;
  }
  // Replaces the job by one restored from the disk.
  ShardTail Restore() {
    job_ = std::make_unique<NightJob>(directory_.path(), NightRig(), kSegmentBytes);
    const auto run = RunRestore::Open({.directory = directory_.path(),
                                       .job = "night",
                                       .run = "run1",
                                       .shards = {kShard}});
    EXPECT_TRUE(run.ok()) << run.status();
    auto tail = (*run)->Play(kShard, job_->blocks(), job_->shard());
    EXPECT_TRUE(tail.ok()) << tail.status();
    return *std::move(tail);
  }

  TempDirectory directory_;
  std::unique_ptr<NightJob> job_ =
      std::make_unique<NightJob>(directory_.path(), NightRig(), kSegmentBytes);
};

TEST_F(BegunAnew, HasAllThatTheShardIs) {
  job_->BeginAnew();
  EXPECT_THAT(Segments(), Contains(HasSubstr("-begun.")));
  job_->Whole();
  EXPECT_EQ(job_->state().durable, 4u);
  EXPECT_THAT(Segments(), AllOf(Contains(HasSubstr("-anew.")),
                                Not(Contains("shard-00003-000001.journal")),
                                Not(Contains(HasSubstr("-begun.")))));
  job_->Step(4);
  const ShardSnapshot five = *job_->shard().Save();
  ShardTail tail = Restore();
  ExpectSame(*job_->shard().Save(), five);
  EXPECT_EQ(tail.anew_version, 4u);
  job_->Begin({std::move(tail)});
  job_->Step(5);
  EXPECT_EQ(job_->state().durable, 6u);
}

TEST_F(BegunAnew, CountsForNothingBeforeItIsWhole) {
  job_->BeginAnew();
  EXPECT_FALSE(job_->state().error.empty());
  EXPECT_EQ(job_->state().durable, 1u);
  const ShardTail tail = Restore();
  EXPECT_EQ(job_->shard().block_version(0), 1u);  // where the journal ended
  EXPECT_THAT(Segments(), Each(Not(HasSubstr("-begun."))));
  for (const std::string& name : Segments()) {
    EXPECT_LE(ParseSegmentName(name)->number, tail.last_number);
  }
}

TEST_F(BegunAnew, IsReplayedFromThereOn) {
  job_->BeginAnew();
  job_->Whole();
  for (uint64_t step = 4; step < 6; ++step) job_->Step(step);
  const ShardSnapshot six = *job_->shard().Save();
  job_ = nullptr;  // writes everything
  const auto out = *OpenDirectoryStore(directory_.path() + "/out");
  ReplayOptions options = Replaying(directory_.path());
  const auto done = ReplayInto(options, *out);
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_EQ(done->began, "step 4, with snapshots");
  EXPECT_EQ(done->name.step, 6u);
  EXPECT_EQ(done->compared, 4u);
  const auto reader = *CheckpointReader::Open(*out, "night", done->name);
  for (const auto& [block, saved] : six.blocks) {
    const ShardBlock place = {block, CutIntoBlocks(kTensors)[block]};
    EXPECT_EQ(reader->Read(place, *options.layout)->blocks.at(block).weights,
              saved.weights);
  }
  options.to = 3;
  EXPECT_THAT(ReplayInto(options, *out).status().ToString(),
              HasSubstr("has all blocks from step 4 on"));
}

// A checkpoint deletes segments only when it covers all block states that the journal
// begins with.
TEST_F(BegunAnew, IsPrunedOnlyByACheckpointOfAllOfIt) {
  job_->BeginAnew();
  job_->Whole();
  ShardTail tail = Restore();
  ShardLog log({.job = "night", .shard = kShard, .blocks = {0, 1}}, tail);
  const auto before = Segments();
  ASSERT_TRUE(log.Prune(3).ok());
  EXPECT_EQ(Segments(), before);
  ASSERT_TRUE(log.Prune(4).ok());
  EXPECT_TRUE(Segments().empty());
}

TEST_F(BegunAnew, TriesAgainAfterItFailed) {
  for (const rlim_t bytes : {40, 100, 40}) {  // less than the head, or just the head
    const FullDisk full(bytes);
    job_->BeginAnew();
  }
  job_->BeginAnew();
  job_->Whole();
  job_->Step(4);
  const ShardSnapshot five = *job_->shard().Save();
  Restore();
  ExpectSame(*job_->shard().Save(), five);
}

// The same job with a journal that goes on and takes snapshots.
class WithSnapshots : public BegunAnew {
 protected:
  WithSnapshots() {
    fs::remove_all(directory_.path() + "/night");
    job_ = std::make_unique<NightJob>(directory_.path(), NightRig(), kSegmentBytes, 2);
    job_->Begin();
    job_->Seed();
  }
  void StepTo(uint64_t step) {
    while (step_ < step) job_->Step(step_++);
  }
  void TakeSnapshots(uint64_t snapshots) {
    while (job_->state().snapshots < snapshots && step_ < 2000) StepTo(step_ + 1);
    ASSERT_GE(job_->state().snapshots, snapshots);
  }

  uint64_t step_ = 0;
};

TEST_F(WithSnapshots, StaysSmallAndComesBackAsItWas) {
  TakeSnapshots(3);
  const JournalState state = job_->state();
  EXPECT_GT(state.begins_at, 0u);
  EXPECT_LT(state.disk_bytes, state.bytes / 2);
  EXPECT_TRUE(state.error.empty());
  const ShardSnapshot now = *job_->shard().Save();
  ShardTail tail = Restore();
  ExpectSame(*job_->shard().Save(), now);
  job_->Begin({std::move(tail)});
  StepTo(step_ + 1);
  EXPECT_EQ(job_->state().durable, step_);
}

TEST_F(WithSnapshots, IsReplayedFromTheLastOneOn) {
  TakeSnapshots(2);
  StepTo(step_ + 5);
  const ShardSnapshot now = *job_->shard().Save();
  job_ = nullptr;  // writes everything
  const auto out = *OpenDirectoryStore(directory_.path() + "/out");
  ReplayOptions options = Replaying(directory_.path());
  const auto done = ReplayInto(options, *out);
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_EQ(done->name.step, step_);
  EXPECT_EQ(done->last, step_);
  EXPECT_GT(done->first, 0u);
  EXPECT_GT(done->compared, 0u);
  const auto reader = *CheckpointReader::Open(*out, "night", done->name);
  for (const auto& [block, saved] : now.blocks) {
    const ShardBlock place = {block, CutIntoBlocks(kTensors)[block]};
    EXPECT_EQ(reader->Read(place, *options.layout)->blocks.at(block).weights,
              saved.weights);
  }
  options.to = done->first;
  const auto first = ReplayInto(options, *out);
  EXPECT_TRUE(first.ok()) << first.status();
  options.to = done->first - 1;
  EXPECT_THAT(ReplayInto(options, *out).status().ToString(),
              HasSubstr(absl::StrCat("from step ", done->first, " on")));
}

// The earlier segments stay, and the next attempt works like the first one.
TEST_F(WithSnapshots, ADiskThatFillsUpInTheMiddleOfOneLosesNothing) {
  TakeSnapshots(1);
  const int orders = job_->orders_taken();
  while (job_->orders_taken() == orders && step_ < 2000) StepTo(step_ + 1);
  ASSERT_GT(job_->orders_taken(), orders);
  const uint64_t durable = step_;
  {
    const FullDisk full(100);
    StepTo(step_ + 3);
    EXPECT_THAT(job_->state().error, HasSubstr("shard-00003-"));
  }
  const std::string copy = directory_.path() + "/copy";
  fs::create_directories(copy);
  fs::copy(directory_.path() + "/night", copy + "/night", fs::copy_options::recursive);
  NightJob back(directory_.path() + "/other", NightRig(), kSegmentBytes);
  const auto run = RunRestore::Open(
      {.directory = copy, .job = "night", .run = "run1", .shards = {kShard}});
  ASSERT_TRUE(run.ok()) << run.status();
  ASSERT_TRUE((*run)->Play(kShard, back.blocks(), back.shard()).ok());
  EXPECT_GE(back.shard().block_version(0), durable);
  job_->BeginAnew();
  job_->Whole();
  const uint64_t before = job_->state().snapshots;
  TakeSnapshots(before + 1);
  const ShardSnapshot now = *job_->shard().Save();
  Restore();
  ExpectSame(*job_->shard().Save(), now);
}

}  // namespace
}  // namespace syncline
