// Frozen weights are written once, and stay as long as a checkpoint needs them.
#include "server/checkpoint/shared_part.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "comm/base/temp_directory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/checkpoint/catalog.h"
#include "server/checkpoint/directory_store.h"
#include "server/checkpoint/reader.h"
#include "server/checkpoint/shared_name.h"

namespace syncline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

namespace fs = std::filesystem;

constexpr char kJob[] = "night";
constexpr char kFirst[] = "parts/frozen-run1-step10-00003.safetensors";

// A job with one trained and two frozen tensors, saved by shard 3.
class SharedParts : public ::testing::Test {
 protected:
  SharedParts() {
    auto layout = std::make_shared<CheckpointLayout>();
    layout->tensors = {{"w", {10}}, {"base", {4, 5}, true}, {"scale", {}, true}};
    std::vector<TrainedTensor> trained;
    for (const CheckpointTensor& tensor : layout->tensors) {
      trained.push_back(
          {.shape = TensorShape(tensor.shape), .group = {.frozen = tensor.frozen}});
    }
    layout->plan =
        *TrainingPlan::Create({.optimizer = {.name = "sgd"}}, std::move(trained));
    layout_ = std::move(layout);
  }

  PartWriter::Options OptionsFor(const CheckpointName& name) const {
    PartWriter::Options options = {
        .job = kJob, .name = name, .shard = 3, .layout = layout_, .blocks = blocks_};
    options.frozen = FindSharedPart(*store_, {.job = kJob,
                                              .run = name.run,
                                              .resumed_from = resumed_from_,
                                              .shard = 3,
                                              .keys = options.FrozenKeys()});
    return options;
  }
  absl::StatusOr<Manifest> WriteParts(const CheckpointName& name) {
    auto part = PartWriter::Create(*store_, OptionsFor(name));
    if (!part.ok()) return part.status();
    for (const ShardBlock& block : blocks_) {
      const bool is_frozen = layout_->tensors[block.range.tensor].frozen;
      BlockSnapshot saved = {.version = is_frozen ? 0 : name.step, .seeded = true};
      const float first = is_frozen ? frozen_ : static_cast<float>(name.step);
      saved.weights.assign(block.range.elements, first);
      saved.state.resize(layout_->SlotsOf(block.range.tensor).size());
      const absl::Status added = (*part)->Add(block.block, saved);
      if (!added.ok()) return added;
    }
    Manifest manifest = {.job = kJob, .name = name, .tensors = layout_->tensors};
    auto files = (*part)->Finish({});
    if (!files.ok()) return files.status();
    manifest.files = *std::move(files);
    return manifest;
  }
  Manifest Write(const CheckpointName& name) {
    const auto manifest = WriteParts(name);
    EXPECT_TRUE(manifest.ok()) << manifest.status();
    EXPECT_TRUE(CheckParts(*store_, *manifest).ok());
    EXPECT_TRUE(PutManifest(*store_, *manifest).ok());
    return *manifest;
  }
  static std::string SharedOf(const Manifest& manifest) {
    std::string shared;
    for (const CheckpointFile& file : manifest.files) {
      if (IsShared(file)) shared += file.name;
    }
    return shared;
  }
  // Expects that the checkpoint is complete, and that the trained tensor is of its step.
  void ExpectWhole(const CheckpointName& name) {
    const auto reader = CheckpointReader::Open(*store_, kJob, name);
    ASSERT_TRUE(reader.ok()) << reader.status();
    EXPECT_TRUE((*reader)->Verify().ok()) << (*reader)->Verify();
    for (const ShardBlock& block : blocks_) {
      const auto part = (*reader)->Read(block, *layout_);
      ASSERT_TRUE(part.ok()) << part.status();
      const bool is_frozen = layout_->tensors[block.range.tensor].frozen;
      EXPECT_EQ(part->blocks.at(block.block).weights,
                std::vector<float>(block.range.elements,
                                   is_frozen ? frozen_ : static_cast<float>(name.step)));
    }
    EXPECT_TRUE((*reader)->Export(*store_, "export.safetensors").ok());
    EXPECT_TRUE(store_->Delete("export.safetensors").ok());
  }
  std::vector<std::string> Parts() {
    std::vector<std::string> names;
    const std::string folder = std::string(kJob) + "/";
    const std::vector<Blob> blobs = *store_->List(folder + kSharedFolder);
    for (const Blob& blob : blobs) {
      names.push_back(blob.name.substr(folder.size()));
    }
    return names;
  }
  // Makes the mark of a part older.
  void Age(const std::string& part, std::chrono::minutes by) {
    const fs::path mark = directory_.File(std::string(kJob) + "/" + part + ".let-go");
    fs::last_write_time(mark, fs::last_write_time(mark) - by);
  }

  TempDirectory directory_;
  const std::unique_ptr<BlobStore> store_ = *OpenDirectoryStore(directory_.path());
  std::shared_ptr<const CheckpointLayout> layout_;
  std::vector<ShardBlock> blocks_ = {{0, {0, 0, 10}}, {1, {1, 0, 20}}, {2, {2, 0, 1}}};
  float frozen_ = 0.5F;
  std::optional<CheckpointName> resumed_from_;
};

TEST_F(SharedParts, AreWrittenOnceAndNamedByLaterCheckpointsOfTheRun) {
  EXPECT_EQ(SharedOf(Write({1, 10})), kFirst);
  EXPECT_EQ(SharedOf(Write({1, 20})), kFirst);
  EXPECT_EQ(SharedOf(Write({1, 30})), kFirst);
  EXPECT_THAT(Parts(), ElementsAre(kFirst));
  for (const uint64_t step : {10, 20, 30}) ExpectWhole({1, step});
}

// Another run may have started with other values.
TEST_F(SharedParts, AreThoseOfAnotherRunOnlyIfThisOneWentOnFromIt) {
  Write({1, 10});
  EXPECT_EQ(SharedOf(Write({2, 10})), "parts/frozen-run2-step10-00003.safetensors");
  resumed_from_ = CheckpointName{1, 10};
  EXPECT_EQ(SharedOf(Write({3, 20})), kFirst);
  ExpectWhole({3, 20});
}

TEST_F(SharedParts, OfOtherBlocksAreNotTaken) {
  Write({1, 10});
  const ShardBlock scale = blocks_.back();
  blocks_.pop_back();
  EXPECT_EQ(OptionsFor({1, 20}).frozen, nullptr);
  blocks_.push_back(scale);
  EXPECT_NE(OptionsFor({1, 20}).frozen, nullptr);
  EXPECT_EQ(
      FindSharedPart(
          *store_,
          {.job = kJob, .run = 1, .shard = 4, .keys = OptionsFor({1, 20}).FrozenKeys()}),
      nullptr);
}

TEST_F(SharedParts, ThatDifferFailTheCheckpointAndStay) {
  Write({1, 10});
  frozen_ = 0.75F;
  const auto refused = WriteParts({1, 20});
  EXPECT_TRUE(absl::IsDataLoss(refused.status())) << refused.status();
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("'base' is frozen"));
  frozen_ = 0.5F;
  ExpectWhole({1, 10});
}

TEST_F(SharedParts, ThatAreDamagedAreWrittenAnew) {
  Write({1, 10});
  fs::resize_file(directory_.File(std::string(kJob) + "/" + kFirst), 40);
  EXPECT_EQ(SharedOf(Write({1, 20})), "parts/frozen-run1-step20-00003.safetensors");
  ExpectWhole({1, 20});
  const auto reader = CheckpointReader::Open(*store_, kJob, {1, 10});
  EXPECT_THAT(std::string(reader.status().message()), HasSubstr(kFirst));
}

TEST_F(SharedParts, StayAsLongAsACheckpointNamesThem) {
  for (const uint64_t step : {10, 20, 30}) Write({1, step});
  ASSERT_TRUE(Retain(*store_, kJob, {1, 30}, 1).ok());
  EXPECT_EQ(ListCheckpoints(*store_, kJob)->size(), 1u);
  ExpectWhole({1, 30});
  Age(kFirst, std::chrono::minutes(180));
  ASSERT_TRUE(Retain(*store_, kJob, {1, 30}, 1).ok());
  ExpectWhole({1, 30});
}

TEST_F(SharedParts, GoAnHourAfterTheLastCheckpointThatNamedThem) {
  Write({1, 10});
  Write({2, 10});  // it has a shared part of its own
  ASSERT_TRUE(Retain(*store_, kJob, {2, 10}, 1).ok());
  Age(kFirst, std::chrono::minutes(50));
  ASSERT_TRUE(Retain(*store_, kJob, {2, 10}, 1).ok());
  EXPECT_EQ(Parts().size(), 3u) << "two, and a mark";
  Age(kFirst, std::chrono::minutes(20));
  ASSERT_TRUE(Retain(*store_, kJob, {2, 10}, 1).ok());
  EXPECT_THAT(Parts(), ElementsAre("parts/frozen-run2-step10-00003.safetensors"));
}

// A server finds a part in a manifest and begins to write. Meanwhile another coordinator
// deletes that checkpoint and everything that is no longer needed.
TEST_F(SharedParts, StayForACheckpointThatIsBeingWritten) {
  Write({1, 10});
  ASSERT_TRUE(DeleteCheckpoint(*store_, kJob, {1, 10}).ok());
  Write({1, 20});  // another part, since no manifest names the first
  Write({1, 30});
  Age(kFirst, std::chrono::minutes(600));
  const auto begun = OptionsFor({1, 40}).frozen;
  ASSERT_NE(begun, nullptr);
  for (const uint64_t step : {20, 30}) {
    ASSERT_TRUE(DeleteCheckpoint(*store_, kJob, {1, step}).ok());
  }
  Write({5, 10});
  ASSERT_TRUE(Retain(*store_, kJob, {5, 10}, 1).ok());
  EXPECT_FALSE(std::ranges::count(Parts(), kFirst)) << "it is of no use";
  EXPECT_TRUE(std::ranges::count(Parts(), begun->file.name));
}

TEST_F(SharedParts, OfASaveThatFailedGo) {
  ASSERT_TRUE(WriteParts({1, 10}).ok());  // no manifest follows
  Write({1, 20});
  ASSERT_TRUE(Retain(*store_, kJob, {1, 20}, 3).ok());
  Age(kFirst, std::chrono::minutes(90));
  ASSERT_TRUE(Retain(*store_, kJob, {1, 20}, 3).ok());
  EXPECT_THAT(Parts(), ElementsAre("parts/frozen-run1-step20-00003.safetensors"));
}

// A directory where blobs can be read and deleted, and none can be written.
class FullStore final : public BlobStore {
 public:
  explicit FullStore(BlobStore& store) : store_(store) {}

  absl::StatusOr<std::vector<Blob>> List(const std::string& folder) override {
    return store_.List(folder);
  }
  absl::Status Read(const std::string& name, uint64_t offset,
                    MutableByteView out) override {
    return store_.Read(name, offset, out);
  }
  absl::StatusOr<std::unique_ptr<BlobWriter>> Create(const std::string&,
                                                     size_t) override {
    return absl::ResourceExhaustedError("the disk is full");
  }
  absl::Status Claim(const std::string&) override {
    return absl::ResourceExhaustedError("the disk is full");
  }
  absl::Status Delete(const std::string& name) override { return store_.Delete(name); }
  std::string Describe() const override { return store_.Describe(); }

 private:
  BlobStore& store_;
};

TEST_F(SharedParts, OfAFullDiskGoWithTheirCheckpointsAndNoneTooSoon) {
  FullStore full(*store_);
  Write({1, 10});
  Write({1, 20});
  ASSERT_TRUE(DeleteCheckpoint(*store_, kJob, {1, 10}).ok());
  Age(kFirst, std::chrono::minutes(180));  // it has a mark, and the other names it
  ASSERT_TRUE(DeleteCheckpoint(full, kJob, {1, 20}).ok());
  EXPECT_THAT(Parts(), ElementsAre(kFirst)) << "unmarked: somebody may have found it";
  Write({2, 10});
  ASSERT_TRUE(Retain(*store_, kJob, {2, 10}, 1).ok());
  EXPECT_TRUE(std::ranges::count(Parts(), kFirst)) << "its hour begins now";
  Age(kFirst, std::chrono::minutes(90));
  ASSERT_TRUE(Retain(full, kJob, {2, 10}, 1).ok());
  EXPECT_THAT(Parts(), ElementsAre("parts/frozen-run2-step10-00003.safetensors"));
}

TEST_F(SharedParts, LeaveNoMarksBehind) {
  Write({1, 10});
  Write({2, 10});
  ASSERT_TRUE(Retain(*store_, kJob, {2, 10}, 1).ok());
  ASSERT_TRUE(store_->Delete(std::string(kJob) + "/" + kFirst).ok());  // and no more
  Age(kFirst, std::chrono::minutes(90));
  ASSERT_TRUE(Retain(*store_, kJob, {2, 10}, 1).ok());
  EXPECT_THAT(Parts(), ElementsAre("parts/frozen-run2-step10-00003.safetensors"));
}

TEST_F(SharedParts, StayWhereAManifestCannotBeRead) {
  Write({1, 10});
  Write({2, 10});
  const std::string manifest = directory_.File("night/run1-step10/manifest.json");
  fs::rename(manifest, manifest + ".old");
  ASSERT_TRUE(Retain(*store_, kJob, {2, 10}, 3).ok());
  Age(kFirst, std::chrono::minutes(90));
  fs::rename(manifest + ".old", manifest);
  fs::resize_file(manifest, 100);
  ASSERT_TRUE(Retain(*store_, kJob, {2, 10}, 3).ok());
  EXPECT_TRUE(std::ranges::count(Parts(), kFirst));
}

TEST_F(SharedParts, ThatAreMissingLetNoManifestBeWritten) {
  Write({1, 10});
  const auto manifest = WriteParts({1, 20});
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  ASSERT_TRUE(store_->Delete(std::string(kJob) + "/" + kFirst).ok());
  EXPECT_THAT(std::string(CheckParts(*store_, *manifest).message()), HasSubstr(kFirst));
}

// Programs that do not know shared parts must still read all other checkpoints.
TEST_F(SharedParts, MakeFormat2OfAManifestAndNothingElseDoes) {
  EXPECT_THAT(WriteManifest(Write({1, 10})), HasSubstr("\"format\": 2"));
  blocks_.resize(1);
  Manifest manifest = Write({1, 20});
  EXPECT_THAT(SharedOf(manifest), IsEmpty());
  EXPECT_THAT(WriteManifest(manifest), HasSubstr("\"format\": 1"));
  for (const char* name : {"parts/../x", "parts/"}) {
    manifest.files[0].name = name;
    EXPECT_THAT(std::string(ParseManifest(WriteManifest(manifest)).status().message()),
                HasSubstr("is not a file name"));
  }
}

}  // namespace
}  // namespace syncline
