// Jobs in modes asp and ssp replay from their journals to the same bits, or are refused.
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "comm/base/crc32c.h"
#include "comm/base/temp_directory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/checkpoint/directory_store.h"
#include "server/journal/replay.h"
#include "server/journal/restore.h"
#include "server/journal/segment.h"
#include "server/shard/recorded_job_test_util.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kShardNumber = 3;

NamedOptions Asp(OptionValues options) {
  return {.name = "asp", .values = std::move(options)};
}

RecordCase CaseOf(NamedOptions mode, OptimizerSettings optimizer) {
  RecordCase one = {.name = FormatNamedOptions(mode)};
  one.training.mode = std::move(mode);
  one.training.optimizer = std::move(optimizer);
  return one;
}

// Worker 0 makes two steps for each one of worker 1, as far as it may be ahead.
void Train(RecordedJob& job, const SyncMode& mode) {
  for (uint64_t turn = 0; turn < 4; ++turn) {
    job.ForEachBlock([&](uint32_t block) {
      for (uint64_t i = 0; mode.is_async() && i < 2; ++i) {
        job.Push(0, block, 2 * turn + i);
      }
      for (uint64_t step = turn * mode.staleness;
           !mode.is_async() && step < (turn + 1) * mode.staleness; ++step) {
        job.Push(0, block, step);
      }
    });
    job.ForEachBlock([&](uint32_t block) {
      if (mode.is_async() && turn == 2) return job.Skip(1, block, turn);
      const uint64_t steps = mode.is_async() ? 1 : mode.staleness;
      for (uint64_t i = 0; i < steps; ++i) job.Push(1, block, turn * steps + i);
    });
  }
}

// A journal of one segment, and the job that is played from it.
class PlayedJob {
 public:
  explicit PlayedJob(RecordCase one) : one_(std::move(one)), job_(one_) {
    std::filesystem::create_directories(folder_);
    Train(job_, one_.training.sync());
    SegmentHead head = {.job = "night", .specification = "bytes", .shard = kShardNumber};
    job_.ForEachBlock([&](uint32_t block) { head.blocks.push_back(block); });
    const auto writer = *SegmentWriter::Create(path_, head);
    for (const auto& record : job_.records()) EXPECT_TRUE(writer->Append(*record).ok());
    EXPECT_TRUE(writer->Sync().ok());
  }

  // Rewrites the file as a program of format 1 would have written it.
  void BeOfFormat1() {
    std::fstream file(path_, std::ios::binary | std::ios::in | std::ios::out);
    std::string bytes(std::istreambuf_iterator<char>(file), {});
    bytes[8] = 1;
    uint32_t size = 0;
    std::memcpy(&size, bytes.data() + 12, sizeof(size));
    const auto view = [&](size_t first, size_t count) {
      return ByteView(std::as_bytes(std::span(bytes))).subspan(first, count);
    };
    const uint32_t crc = Crc32c(view(20, size), Crc32c(view(0, 16)));
    std::memcpy(bytes.data() + 16, &crc, sizeof(crc));
    file.seekp(0);
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }

  // Plays record by record into an empty shard, and compares.
  void ExpectSameBits() {
    const auto reader = *SegmentReader::Open(path_, SegmentReader::Place::kFollowed);
    ShardRig again(OptionsFor(one_, Records::kNone));
    size_t records = 0;
    for (;; ++records) {
      const auto record = *reader->Next();
      if (!record) break;
      const auto outputs = again.shard().Replay(*record);
      ASSERT_TRUE(outputs.ok()) << outputs.status();
    }
    EXPECT_EQ(records, job_.records().size());
    EXPECT_EQ(again.shard().Save()->blocks, job_.rig().shard().Save()->blocks);
    EXPECT_EQ(again.Weights(0), job_.rig().Weights(0));
  }

  // As a server does that was started again.
  absl::Status GoOn() {
    const auto run = RunRestore::Open({.directory = directory_.path(),
                                       .job = "night",
                                       .run = "run1",
                                       .shards = {kShardNumber},
                                       .layout = Layout()});
    if (!run.ok()) return run.status();
    std::vector<ShardBlock> blocks;
    for (const BlockRange& range : CutIntoBlocks(one_.tensors)) {
      blocks.push_back({static_cast<uint32_t>(blocks.size()), range});
    }
    ShardRig again(OptionsFor(one_, Records::kNone));
    return (*run)->Play(kShardNumber, blocks, again.shard()).status();
  }

  absl::StatusOr<ReplaySummary> Verify() {
    ShardOptions shard = {.job = 7, .seed = 5, .shard = kShardNumber};
    shard.transfers.assign(
        one_.tensors.size(),
        {.push = *ParseTransfer(one_.push), .publish = *ParseTransfer(one_.publish)});
    shard.seed_codec = *codecs_.Find(CodecId::kFp32);
    shard.training = one_.training;
    shard.tensors = Trained();
    const auto layout = Layout();
    JournalRun run = {
        .head = *(*SegmentReader::Open(path_, SegmentReader::Place::kLast))->head()};
    run.shards[kShardNumber] = {path_};
    const auto out = *OpenDirectoryStore(directory_.path() + "/out");
    return ReplayInto({.run = std::move(run),
                       .shard = shard,
                       .blocks = CutIntoBlocks(one_.tensors),
                       .layout = layout,
                       .about = {.job = "night",
                                 .push_codec = one_.push,
                                 .publish_codec = one_.publish,
                                 .declared = shard.training,
                                 .tensors = layout->tensors},
                       .digests = Digests::kCompared},
                      *out);
  }

 private:
  std::vector<TrainedTensor> Trained() const {
    std::vector<TrainedTensor> trained;
    for (const uint64_t& elements : one_.tensors) {
      trained.push_back({.shape = TensorShape({&elements, 1})});
    }
    return trained;
  }
  std::shared_ptr<const CheckpointLayout> Layout() const {
    auto layout = std::make_shared<CheckpointLayout>();
    for (size_t i = 0; i < one_.tensors.size(); ++i) {
      layout->tensors.push_back(
          {std::string(1, static_cast<char>('a' + i)), {one_.tensors[i]}});
    }
    layout->plan = *TrainingPlan::Create(one_.training, Trained());
    return layout;
  }

  const CodecRegistry codecs_ = CodecRegistry::Builtin();
  const RecordCase one_;
  RecordedJob job_;
  TempDirectory directory_;
  const std::string folder_ = directory_.path() + "/night/run1";
  const std::string path_ = folder_ + "/" + SegmentName(kShardNumber, 1);
};

const OptimizerSettings kPlain = {.name = "sgd", .options = {{"lr", 0.1}}};
const OptimizerSettings kMomentum = {.name = "sgd",
                                     .options = {{"lr", 0.1}, {"momentum", 0.9}}};
const OptimizerSettings kDelayed = {.name = "sgd",
                                    .options = {{"lr", 0.1},
                                                {"momentum", 0.9},
                                                {"nesterov", 1},
                                                {"momentum_every", 3},
                                                {"momentum_between", 0.1}}};
const OptimizerSettings kAdamW = {.name = "adamw", .options = {{"lr", 0.01}}};

TEST(ModeJournals, GiveTheSameBitsAgain) {
  const NamedOptions modes[] = {Asp({}),
                                Asp({{"age_power", 1}}),
                                Asp({{"age_decay", 0.5}, {"age_limit", 4}}),
                                Asp({{"age_power", 0.5}, {"compensation", 0.04}}),
                                {.name = "ssp", .values = {{"staleness", 1}}},
                                {.name = "ssp", .values = {{"staleness", 3}}}};
  for (const NamedOptions& mode : modes) {
    for (const OptimizerSettings& optimizer : {kPlain, kMomentum, kDelayed, kAdamW}) {
      if (optimizer == kDelayed && mode.name != "asp") continue;  // refused
      SCOPED_TRACE(FormatNamedOptions(mode) + " of " + optimizer.name);
      PlayedJob job(CaseOf(mode, optimizer));
      job.ExpectSameBits();
      const auto done = job.Verify();
      ASSERT_TRUE(done.ok()) << done.status();
      EXPECT_GE(done->compared, 12u) << "three blocks, four steps or more";
    }
  }
}

// The server that wrote it scaled the learning rate by age.
TEST(ModeJournals, OfFormat1AreRefusedWhereTheRuleWasAnother) {
  PlayedJob job(CaseOf(Asp({{"age_power", 1}}), kMomentum));
  job.BeOfFormat1();
  for (const absl::Status& refused : {job.Verify().status(), job.GoOn()}) {
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(refused.message()),
                AllOf(HasSubstr("is of format 1: its server weighed old contributions by "
                                "the learning rate of optimizer 'sgd'"),
                      HasSubstr("with the version of Syncline that wrote it")));
  }
}

TEST(ModeJournals, OfFormat1ArePlayedWhereTheRuleIsTheSame) {
  const RecordCase cases[] = {
      CaseOf(Asp({{"age_power", 1}}), kPlain),
      CaseOf(Asp({{"compensation", 0.04}}), kMomentum),
      CaseOf({.name = "ssp", .values = {{"staleness", 2}}}, kAdamW)};
  for (const RecordCase& one : cases) {
    SCOPED_TRACE(one.name);
    PlayedJob job(one);
    job.BeOfFormat1();
    EXPECT_TRUE(job.Verify().ok()) << job.Verify().status();
    const absl::Status goes_on = job.GoOn();
    EXPECT_TRUE(goes_on.ok()) << goes_on;
  }
}

}  // namespace
}  // namespace syncline
