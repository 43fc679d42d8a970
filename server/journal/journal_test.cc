// Records on disk: they are read as written, torn ones are cut off, damaged ones are
// refused, and a job replayed from its journal is the same job.
#include "server/journal/journal.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/base/eventually.h"
#include "comm/base/temp_directory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/checkpoint/catalog.h"
#include "server/checkpoint/directory_store.h"
#include "server/checkpoint/reader.h"
#include "server/journal/journaled_training_test_util.h"
#include "server/journal/record_bytes.h"
#include "server/journal/replay.h"

namespace syncline {
namespace {

namespace fs = std::filesystem;

using ::testing::HasSubstr;

// ---- The journal's thread, and replay ----

ShardOptions OptionsOfRig() {
  static const CodecRegistry codecs = CodecRegistry::Builtin();
  ShardOptions options = {.job = kJob, .shard = kShardOfRig};
  options.transfers.assign(
      2, {.push = *ParseTransfer("bf16"), .publish = *ParseTransfer("bf16")});
  options.seed_codec = *codecs.Find(CodecId::kFp32);
  options.training = JournaledRig().training;
  for (const uint64_t elements : kTensors) {
    options.tensors.push_back({.shape = TensorShape({&elements, 1})});
  }
  return options;
}

class JournalTest : public ::testing::Test {
 protected:
  JournalTest() { options_.directory = directory_.path() + "/journal"; }

  static JournaledJob Job() {
    SegmentHead head = SomeHead();
    head.began_from.reset();
    return {
        .job = kJob, .head = std::move(head), .blocks = {{0, 1}}, .trained = {{0, 1}}};
  }
  void Write(const RecordList& records) {
    Journal journal(options_);
    ASSERT_TRUE(journal.Begin(Job()).ok());
    journal.Name(kJob, "run");
    for (const auto& record : records) journal.Take(kJob, 0, record);
  }
  ReplayOptions Replaying() {
    auto layout = std::make_shared<CheckpointLayout>();
    layout->tensors = {{"a", {300}}, {"b", {20}}};
    const ShardOptions shard = OptionsOfRig();
    layout->plan = *TrainingPlan::Create(shard.training, shard.tensors);
    return {.run = *FindRun({options_.directory}, "night"),
            .shard = shard,
            .blocks = CutIntoBlocks(kTensors),
            .layout = layout,
            .about = {.job = "night",
                      .push_codec = "bf16",
                      .publish_codec = "bf16",
                      .declared = shard.training,
                      .tensors = layout->tensors},
            .checkpoints = out_.get(),
            .digests = Digests::kCompared};
  }
  std::vector<float> WeightsOf(const CheckpointName& name, uint32_t block) {
    const auto reader = *CheckpointReader::Open(*out_, "night", name);
    EXPECT_TRUE(reader->Verify().ok());
    const auto layout = Replaying().layout;
    return reader->Read({block, CutIntoBlocks(kTensors)[block]}, *layout)
        ->blocks.at(block)
        .weights;
  }

  TempDirectory directory_;
  JournalOptions options_;
  std::unique_ptr<BlobStore> out_ = *OpenDirectoryStore(directory_.path() + "/out");
  JournaledTraining training_;
};

TEST_F(JournalTest, AJobPlayedFromItIsThatJob) {
  for (int i = 0; i < 5; ++i) training_.Step();
  options_.segment_bytes = 2000;  // several
  Write(training_.records());
  EXPECT_GT(Replaying().run.shards.at(kShardOfRig).size(), 2u);
  const auto done = ReplayInto(Replaying(), *out_);
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_EQ(done->name, (CheckpointName{2, 5}));
  EXPECT_EQ(done->compared, 10u);
  for (uint32_t block = 0; block < 2; ++block) {
    EXPECT_EQ(WeightsOf(done->name, block), training_.rig().Weights(block));
  }
}

TEST_F(JournalTest, AnyStepOfItCanBeHad) {
  std::vector<std::vector<float>> weights = {training_.rig().Weights(0)};
  for (int i = 0; i < 4; ++i) {
    training_.Step();
    weights.push_back(training_.rig().Weights(0));
  }
  Write(training_.records());
  for (uint64_t step = 0; step < weights.size(); ++step) {
    ReplayOptions options = Replaying();
    options.to = step;
    const auto done = ReplayInto(options, *out_);
    ASSERT_TRUE(done.ok()) << done.status();
    EXPECT_EQ(WeightsOf(done->name, 0), weights[step]) << step;
  }
  ReplayOptions beyond = Replaying();
  beyond.to = 9;
  EXPECT_THAT(ReplayInto(beyond, *out_).status().ToString(),
              HasSubstr("ends at step 4, before step 9"));
  beyond.to = 2;
  beyond.run.head.began_from = CheckpointName{2, 3};
  EXPECT_THAT(ReplayInto(beyond, *out_).status().ToString(),
              HasSubstr("began with checkpoint run2-step3, and step 2 is earlier"));
  EXPECT_THAT(ReplayInto(Replaying(), *out_).status().ToString(), HasSubstr("already"));
  options_.directory += "-behind";
  Write({training_.records().begin(), training_.records().begin() + 4});
  EXPECT_THAT(ReplayInto(Replaying(), *out_).status().ToString(),
              HasSubstr("ends at step 1, but checkpoint run2-step4 is further"));
}

// The checkpoint with which the part was written may be gone, and may have had other values.
TEST_F(JournalTest, AReplayOverwritesNoPartThatACheckpointShares) {
  training_.Step();
  training_.Step();
  Write(training_.records());
  ReplayOptions options = Replaying();
  options.to = 1;
  const auto first = ReplayInto(options, *out_);
  ASSERT_TRUE(first.ok()) << first.status();
  Manifest manifest = *ReadManifest(*out_, "night", first->name);
  manifest.files.at(0).name = "parts/frozen-run2-step2-00000.safetensors";
  ASSERT_TRUE(PutManifest(*out_, manifest).ok());
  options.to = 2;
  EXPECT_THAT(ReplayInto(options, *out_).status().ToString(),
              HasSubstr("checkpoint run2-step1 in"));
  manifest.files.at(0).name = "parts/frozen-run2-step20-00000.safetensors";
  ASSERT_TRUE(PutManifest(*out_, manifest).ok());
  EXPECT_TRUE(ReplayInto(options, *out_).ok());
}

TEST_F(JournalTest, AJobThatBeganWithTheStateOfAnotherIsThatJobToo) {
  // The state has more updates behind it than the job has steps.
  RecordList records = training_.records();
  SeedRecord seed = std::get<SeedRecord>(records[0]->what);
  seed.updates = 1000;
  for (int slot = 0; slot < 2; ++slot) {
    seed.state.emplace_back(300 * sizeof(float), std::byte{0x3c});
  }
  records[0] = std::make_shared<const ShardRecord>(ShardRecord{1, seed});
  Write(records);
  const auto done = ReplayInto(Replaying(), *out_);
  ASSERT_TRUE(done.ok()) << done.status();
  const auto reader = CheckpointReader::Open(*out_, "night", done->name);
  ASSERT_TRUE(reader.ok()) << reader.status();
  const auto part = (*reader)->Read({0, CutIntoBlocks(kTensors)[0]}, *Replaying().layout);
  EXPECT_EQ(part->blocks.at(0).updates, 1000u);
  EXPECT_EQ(part->blocks.at(0).state, seed.state);
  EXPECT_EQ(part->blocks.at(0).weights, training_.rig().Weights(0));
}

TEST_F(JournalTest, WithoutFirstValuesItIsNotPlayed) {
  RecordList records = training_.records();
  ASSERT_EQ(records.size(), 2u);
  records.pop_back();  // of block 1, which is not on the disk yet
  Write(records);
  EXPECT_THAT(ReplayInto(Replaying(), *out_).status().ToString(),
              HasSubstr("block 1 of tensor 'b' has no first values in the journal"));
  EXPECT_TRUE(out_->List("")->empty());
}

TEST_F(JournalTest, AnotherDigestIsFoundWithBlockStepAndShard) {
  for (int i = 0; i < 3; ++i) training_.Step();
  RecordList records = training_.records();
  StepRecord wrong = std::get<StepRecord>(records.back()->what);
  ++wrong.digest;
  records.back() = std::make_shared<const ShardRecord>(ShardRecord{2, wrong});
  Write(records);
  EXPECT_THAT(ReplayInto(Replaying(), *out_).status().ToString(),
              HasSubstr("block 1 differs after step 2 of shard 3"));
}

TEST_F(JournalTest, SegmentsGoWhenACompleteCheckpointCoversThem) {
  options_.segment_bytes = 1;  // a segment for each record
  options_.checkpoints = out_.get();
  for (int i = 0; i < 3; ++i) training_.Step();
  Write(training_.records());
  ReplayOptions replaying = Replaying();
  for (const uint64_t step : {2, 3}) {
    replaying.to = step;
    ASSERT_TRUE(ReplayInto(replaying, *out_).ok());
  }
  const std::string damaged = out_->List("night/run2-step3")->back().name;
  ASSERT_THAT(damaged, HasSubstr("weights"));
  fs::resize_file(directory_.path() + "/out/" + damaged, 100);
  fs::remove_all(options_.directory);
  {
    Journal journal(options_);
    ASSERT_TRUE(journal.Begin(Job()).ok());
    journal.Name(kJob, "run");
    for (const auto& record : training_.records()) journal.Take(kJob, 0, record);
    journal.Saved(kJob, 4);  // never completed
    journal.Saved(kJob, 3);  // damaged
    journal.Saved(kJob, 2);
    const auto first = options_.directory + "/night/run/" + SegmentName(kShardOfRig, 1);
    EXPECT_TRUE(
        Eventually([&] { return journal.State(kJob)->bytes > 0 && !fs::exists(first); }));
  }
  training_.Step();
  const auto again = *OpenDirectoryStore(directory_.path() + "/again");
  const auto done = ReplayInto(Replaying(), *again);
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_EQ(done->began, "checkpoint run2-step2");
  EXPECT_EQ(done->name.step, 3u);
}

TEST_F(JournalTest, ADiskThatFailsEndsTheJournalAndSaysWhere) {
  Journal journal(options_);
  ASSERT_TRUE(journal.Begin(Job()).ok());
  WriteSegment(options_.directory + "/night/run", {});  // a file where a folder is needed
  journal.Name(kJob, "run");
  journal.Take(kJob, 0, training_.records().front());
  ASSERT_TRUE(Eventually([&] { return !journal.State(kJob)->error.empty(); }));
  EXPECT_THAT(journal.State(kJob)->error, HasSubstr(options_.directory));
}

TEST_F(JournalTest, SaysHowFarTheDiskIs) {
  Journal journal(options_);
  ASSERT_TRUE(journal.Begin(Job()).ok());
  journal.Name(kJob, "run");
  for (int i = 0; i < 3; ++i) training_.Step();
  for (const auto& record : training_.records()) journal.Take(kJob, 0, record);
  EXPECT_EQ(journal.State(kJob)->taken, 3u);
  EXPECT_TRUE(Eventually([&] { return journal.State(kJob)->lag() == 0; }));
  EXPECT_EQ(journal.State(kJob)->durable, 3u);
  EXPECT_GT(journal.State(kJob)->bytes, 3 * 300 * sizeof(float));
}

}  // namespace
}  // namespace syncline
