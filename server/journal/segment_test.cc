// Records as bytes, and the files of them: whatever happens to a file, it is read as it was
// written, or refused.
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/base/temp_directory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/journal/journaled_training_test_util.h"
#include "server/journal/record_bytes.h"
#include "server/journal/segment.h"

namespace syncline {
namespace {

namespace fs = std::filesystem;

using ::testing::HasSubstr;

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
    bytes_ = ReadSegment(path_);
  }

  struct Read {
    absl::Status status = {};
    size_t records = 0;
    uint64_t torn = 0;
  };
  // Reads all records, which must be those that were written.
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
  std::vector<uint64_t> starts_;  // offsets of records
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
    WriteSegment(path_, ByteView(bytes_).first(size));
    const Read read = ReadAll();
    EXPECT_TRUE(read.status.ok()) << read.status;
    const auto whole = std::ranges::upper_bound(starts_, size) - starts_.begin() - 1;
    EXPECT_EQ(read.records, static_cast<size_t>(whole));
    EXPECT_EQ(read.torn, size - starts_[static_cast<size_t>(whole)]);
  }
}

TEST_F(Segments, ATailThatASegmentFollowsIsDamage) {
  WriteSegment(path_, ByteView(bytes_).first(bytes_.size() - 1));
  const Read read = ReadAll(SegmentReader::Place::kFollowed);
  EXPECT_EQ(read.status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(read.status.ToString(), HasSubstr(absl::StrCat("byte ", starts_.back())));
}

// A power cut may keep the end of what was not synced but lose its beginning.
TEST_F(Segments, AHoleInTheLastGroupIsCutOffAndOneBeforeItIsRefused) {
  const size_t last_group = (starts_.size() - 1) / 3 * 3;
  for (size_t record = 0; record < starts_.size(); ++record) {
    std::vector<std::byte> bytes = bytes_;
    bytes[starts_[record] + 40] ^= std::byte{1};
    WriteSegment(path_, bytes);
    const Read read = ReadAll();
    EXPECT_EQ(read.records, record);
    EXPECT_EQ(read.status.ok(), record >= last_group) << record;
    if (record >= last_group) continue;
    EXPECT_THAT(read.status.ToString(),
                HasSubstr(absl::StrCat(path_, " is damaged at byte ", starts_[record])));
  }
}

// Whatever bytes change, a record that was not written is never read (ReadAll).
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
        case 2:  // bytes from another place
          std::copy_n(bytes.begin(), std::min<size_t>(bytes.size() - at, random(200)),
                      bytes.begin() + static_cast<ptrdiff_t>(at));
          break;
        default:
          bytes.erase(bytes.begin() + static_cast<ptrdiff_t>(at));
          if (bytes.empty()) bytes.push_back(std::byte{0});
      }
    }
    WriteSegment(path_, bytes);
    ReadAll(round % 2 == 0 ? SegmentReader::Place::kLast
                           : SegmentReader::Place::kFollowed);
  }
}

TEST_F(Segments, OfANewerFormatAreRefused) {
  bytes_[8] = std::byte{kJournalFormat + 1};
  WriteSegment(path_, bytes_);
  EXPECT_THAT(ReadAll().status.ToString(), HasSubstr("use a newer Syncline"));
}

// For a new format: run this test, and commit the file that it wrote.
TEST_F(Segments, OfAllFormatsStayReadable) {
  const std::string folder = std::string(JOURNAL_TESTDATA) + "/format";
  const std::string golden = folder + std::to_string(kJournalFormat) + ".journal";
  const bool is_new = !fs::exists(golden);
  if (is_new) WriteSegment(golden, bytes_);
  EXPECT_TRUE(!is_new && ReadSegment(golden) == bytes_) << "commit it, if it is new";
  for (uint32_t format = 1; format <= kJournalFormat; ++format) {
    WriteSegment(path_, ReadSegment(folder + std::to_string(format) + ".journal"));
    EXPECT_EQ(ReadAll().records, training_.records().size()) << "format " << format;
  }
}

}  // namespace
}  // namespace syncline
