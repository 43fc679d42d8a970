// Records on disk: what is written is read again, what is torn is cut off, what is damaged
// is refused, and a job played from its journal is that job.
#include "server/journal/journal.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "comm/base/temp_directory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/checkpoint/directory_store.h"
#include "server/checkpoint/reader.h"
#include "server/journal/record_bytes.h"
#include "server/journal/replay.h"
#include "server/shard/shard_test_util.h"

namespace syncline {
namespace {

namespace fs = std::filesystem;

using ::testing::HasSubstr;

constexpr uint32_t kJob = 7;
constexpr uint32_t kShardOfRig = 3;
constexpr uint64_t kTensors[] = {300, 20};

std::vector<std::byte> ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(in), {});
  const auto* data = reinterpret_cast<const std::byte*>(bytes.data());
  return {data, data + bytes.size()};
}

void WriteFile(const std::string& path, ByteView bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(reinterpret_cast<const char*>(bytes.data()),
            static_cast<std::streamsize>(bytes.size()));
}

RigOptions JournaledRig() {
  RigOptions options = {.codec = "bf16", .tensors = {300, 20}, .records = Records::kKept};
  options.training.optimizer = {.name = "adamw", .options = {{"lr", 0.01}}};
  return options;
}

using RecordList = std::vector<std::shared_ptr<const ShardRecord>>;

// Two workers train two blocks.
class JournaledTraining {
 public:
  JournaledTraining() {
    Take(rig_.Commit(1, {rig_.Member(0), rig_.Member(1)}));
    for (uint32_t block = 0; block < 2; ++block) {
      Take(rig_.Seed(block, SomeValues(rig_.range(block).elements, block)));
    }
  }
  void Step() {
    for (uint32_t block = 0; block < 2; ++block) {
      for (uint32_t rank = 0; rank < 2; ++rank) Take(rig_.Push(rank, block, step_));
    }
    if (++step_ != 2) return;
    TrainingSettings slower = JournaledRig().training;
    slower.optimizer.options["lr"] = 0.001;
    slower.schedule = {.name = "cosine", .values = {{"total_steps", 9}}};
    Take(rig_.shard().Apply(
        ShardCommit{2, {rig_.Member(0), rig_.Member(1)}, slower, step_}));
  }
  ShardRig& rig() { return rig_; }
  const RecordList& records() const { return records_; }

 private:
  void Take(const ShardOutputs& outputs) {
    for (const ShardOutput& output : outputs) {
      const auto* kept = std::get_if<ShardRecorded>(&output);
      if (kept != nullptr) records_.push_back(kept->record);
    }
  }

  ShardRig rig_{JournaledRig()};
  uint64_t step_ = 0;
  RecordList records_;
};

std::vector<std::byte> BytesOfRecord(const ShardRecord& record) {
  const RecordBytes written = WriteRecord(record);
  std::vector<std::byte> bytes = written.head;
  bytes.insert(bytes.end(), written.payload.data,
               written.payload.data + written.payload.size);
  return bytes;
}

TEST(RecordBytes, AreReadAsTheyWereWritten) {
  JournaledTraining training;
  for (int i = 0; i < 3; ++i) training.Step();
  StepRecord odd = std::get<StepRecord>(training.records().back()->what);
  odd.arrival = ShardApplied::Arrival{.step = 5, .age = 3};
  odd.decision = {.step = 9,
                  .gradient_scale = 0.5f,
                  .verdict = ShardDecision::Verdict::kSkip,
                  .loss_scale = 8,
                  .figures = {1.5, -2.5}};
  odd.parts[0].from.parting = true;
  RecordList records = training.records();
  records.push_back(std::make_shared<const ShardRecord>(ShardRecord{4, odd}));
  SeedRecord grown = std::get<SeedRecord>(training.records().front()->what);
  grown.updates = 9;
  grown.state = {{std::byte{1}, std::byte{2}}, {std::byte{3}}};
  records.push_back(std::make_shared<const ShardRecord>(ShardRecord{4, grown}));
  const auto regrown = ReadRecord(BytesOfRecord(*records.back()));
  ASSERT_TRUE(regrown.ok()) << regrown.status();
  EXPECT_EQ(std::get<SeedRecord>(regrown->what).updates, grown.updates);
  EXPECT_EQ(std::get<SeedRecord>(regrown->what).state, grown.state);
  for (const auto& record : records) {
    const std::vector<std::byte> bytes = BytesOfRecord(*record);
    const auto read = ReadRecord(bytes);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(BytesOfRecord(*read), bytes);
    EXPECT_EQ(read->what.index(), record->what.index());
    const auto* settings = std::get_if<SettingsRecord>(&record->what);
    if (settings == nullptr) continue;
    EXPECT_EQ(std::get<SettingsRecord>(read->what).training, settings->training);
  }
}

SegmentHead SomeHead() {
  return {.job = "night",
          .specification = "bytes",
          .created_unix_ms = 1000,
          .shard = kShardOfRig,
          .blocks = {0, 1},
          .checkpoint_run = 2,
          .began_from = CheckpointName{1, 40}};
}

class Segments : public ::testing::Test {
 protected:
  // Groups of three records.
  Segments() {
    for (int i = 0; i < 4; ++i) training_.Step();
    const auto writer = *SegmentWriter::Create(path_, SomeHead());
    for (const auto& record : training_.records()) {
      starts_.push_back(writer->bytes());
      EXPECT_TRUE(writer->Append(*record).ok());
      if (starts_.size() % 3 != 0) continue;
      EXPECT_TRUE(writer->Sync().ok());
    }
    bytes_ = ReadFile(path_);
  }

  struct Read {
    absl::Status status = {};
    size_t records = 0;
    uint64_t torn = 0;
  };
  // Whatever is read must be what was written.
  Read ReadAll(SegmentReader::Place place = SegmentReader::Place::kLast) {
    const auto reader = SegmentReader::Open(path_, place);
    if (!reader.ok()) return {.status = reader.status()};
    Read read;
    for (;;) {
      const auto record = (*reader)->Next();
      read.torn = (*reader)->torn_bytes();
      read.status = record.status();
      if (!record.ok() || !*record) return read;
      EXPECT_EQ(BytesOfRecord(**record),
                BytesOfRecord(*training_.records()[read.records]));
      ++read.records;
    }
  }

  TempDirectory directory_;
  const std::string path_ = directory_.path() + "/" + SegmentName(kShardOfRig, 1);
  JournaledTraining training_;
  std::vector<uint64_t> starts_;  // of records
  std::vector<std::byte> bytes_;
};

TEST_F(Segments, AreReadAsTheyWereWritten) {
  const Read read = ReadAll(SegmentReader::Place::kFollowed);
  EXPECT_TRUE(read.status.ok()) << read.status;
  EXPECT_EQ(read.records, training_.records().size());
  EXPECT_EQ((*SegmentReader::Open(path_, SegmentReader::Place::kLast))->head(),
            SomeHead());
}

TEST_F(Segments, AreNeverWrittenOver) {
  const auto again = SegmentWriter::Create(path_, SomeHead());
  EXPECT_EQ(again.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(again.status().ToString(), HasSubstr(path_));
}

TEST_F(Segments, ATornTailIsCutAtTheLastWholeRecord) {
  for (size_t size = starts_[1]; size < bytes_.size(); size += 31) {
    WriteFile(path_, ByteView(bytes_).first(size));
    const Read read = ReadAll();
    EXPECT_TRUE(read.status.ok()) << read.status;
    const auto whole = std::ranges::upper_bound(starts_, size) - starts_.begin() - 1;
    EXPECT_EQ(read.records, static_cast<size_t>(whole));
    EXPECT_EQ(read.torn, size - starts_[static_cast<size_t>(whole)]);
  }
}

TEST_F(Segments, ATailThatASegmentFollowsIsDamage) {
  WriteFile(path_, ByteView(bytes_).first(bytes_.size() - 1));
  const Read read = ReadAll(SegmentReader::Place::kFollowed);
  EXPECT_EQ(read.status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(read.status.ToString(), HasSubstr(absl::StrCat("byte ", starts_.back())));
}

// A power cut may keep the end of what was not synced, and lose its beginning.
TEST_F(Segments, AHoleInTheLastGroupIsCutOffAndOneBeforeItIsRefused) {
  const size_t last_group = (starts_.size() - 1) / 3 * 3;
  for (size_t record = 0; record < starts_.size(); ++record) {
    std::vector<std::byte> bytes = bytes_;
    bytes[starts_[record] + 40] ^= std::byte{1};
    WriteFile(path_, bytes);
    const Read read = ReadAll();
    EXPECT_EQ(read.records, record);
    EXPECT_EQ(read.status.ok(), record >= last_group) << record;
    if (record >= last_group) continue;
    EXPECT_THAT(read.status.ToString(),
                HasSubstr(absl::StrCat(path_, " is damaged at byte ", starts_[record])));
  }
}

// Any bytes may have any value: nothing that was not written is ever read (ReadAll).
TEST_F(Segments, MutatedInAnyWayTheyAreNeverReadWrongly) {
  uint64_t state = 1;
  const auto random = [&state](uint64_t below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % below;
  };
  for (int round = 0; round < 500; ++round) {
    std::vector<std::byte> bytes = bytes_;
    const uint64_t changes = 1 + random(4);
    for (uint64_t i = 0; i < changes; ++i) {
      const uint64_t at = random(bytes.size());
      switch (random(4)) {
        case 0:
          bytes[at] = static_cast<std::byte>(random(256));
          break;
        case 1:
          bytes.resize(at + 1);
          break;
        case 2:  // a run of another place
          std::copy_n(bytes.begin(), std::min<size_t>(bytes.size() - at, random(200)),
                      bytes.begin() + static_cast<ptrdiff_t>(at));
          break;
        default:
          bytes.erase(bytes.begin() + static_cast<ptrdiff_t>(at));
          if (bytes.empty()) bytes.push_back(std::byte{0});
      }
    }
    WriteFile(path_, bytes);
    ReadAll(round % 2 == 0 ? SegmentReader::Place::kLast
                           : SegmentReader::Place::kFollowed);
  }
}

TEST_F(Segments, OfANewerFormatAreRefused) {
  bytes_[8] = std::byte{kJournalFormat + 1};
  WriteFile(path_, bytes_);
  EXPECT_THAT(ReadAll().status.ToString(), HasSubstr("use a newer Syncline"));
}

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
              HasSubstr("leads to step 4, not to 9"));
  beyond.to = 2;
  beyond.run.head.began_from = CheckpointName{2, 3};
  EXPECT_THAT(ReplayInto(beyond, *out_).status().ToString(),
              HasSubstr("began with checkpoint run2-step3, and step 2 is before"));
  EXPECT_THAT(ReplayInto(Replaying(), *out_).status().ToString(), HasSubstr("already"));
  options_.directory += "-behind";
  Write({training_.records().begin(), training_.records().begin() + 4});
  EXPECT_THAT(ReplayInto(Replaying(), *out_).status().ToString(),
              HasSubstr("leads to step 1, and checkpoint run2-step4 is further"));
}

TEST_F(JournalTest, AJobThatBeganWithTheStateOfAnotherIsThatJobToo) {
  // Of more updates than the job has steps.
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
  records.pop_back();  // of block 1, which is on no disk yet
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
  options_.segment_bytes = 1;  // each record its own
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
    const auto waits = [&] {
      return journal.State(kJob)->bytes == 0 || fs::exists(first);
    };
    for (int i = 0; i < 1000 && waits(); ++i) absl::SleepFor(absl::Milliseconds(20));
    EXPECT_FALSE(fs::exists(first));
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
  WriteFile(options_.directory + "/night/run", {});  // a file is no directory
  journal.Name(kJob, "run");
  journal.Take(kJob, 0, training_.records().front());
  std::string error;
  for (int i = 0; i < 1000 && error.empty(); ++i) {
    absl::SleepFor(absl::Milliseconds(10));
    error = journal.State(kJob)->error;
  }
  EXPECT_THAT(error, HasSubstr(options_.directory));
}

TEST_F(JournalTest, SaysHowFarTheDiskIs) {
  Journal journal(options_);
  ASSERT_TRUE(journal.Begin(Job()).ok());
  journal.Name(kJob, "run");
  for (int i = 0; i < 3; ++i) training_.Step();
  for (const auto& record : training_.records()) journal.Take(kJob, 0, record);
  EXPECT_EQ(journal.State(kJob)->taken, 3u);
  for (int i = 0; i < 1000 && journal.State(kJob)->lag() > 0; ++i) {
    absl::SleepFor(absl::Milliseconds(10));
  }
  EXPECT_EQ(journal.State(kJob)->durable, 3u);
  EXPECT_GT(journal.State(kJob)->bytes, 3 * 300 * sizeof(float));
}

// For a new format: run this test, and commit what it wrote.
TEST_F(Segments, OfAllFormatsStayReadable) {
  const std::string folder = std::string(JOURNAL_TESTDATA) + "/format";
  const std::string golden = folder + std::to_string(kJournalFormat) + ".journal";
  const bool is_new = !fs::exists(golden);
  if (is_new) WriteFile(golden, bytes_);
  EXPECT_TRUE(!is_new && ReadFile(golden) == bytes_) << "commit it, if it is new";
  for (uint32_t format = 1; format <= kJournalFormat; ++format) {
    WriteFile(path_, ReadFile(folder + std::to_string(format) + ".journal"));
    EXPECT_EQ(ReadAll().records, training_.records().size()) << "format " << format;
  }
}

}  // namespace
}  // namespace syncline
