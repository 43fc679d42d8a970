// Parts, manifests and readers together: other shards can read what was written, and
// nothing that was changed since is accepted.
#include <sys/stat.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <span>

#include "comm/base/temp_directory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/checkpoint/catalog.h"
#include "server/checkpoint/directory_store.h"
#include "server/checkpoint/part.h"
#include "server/checkpoint/reader.h"
#include "server/checkpoint/safetensors.h"
#include "server/checkpoint/shared_name.h"
#include "server/checkpoint/shared_part.h"
#include "server/shard/shard_test_util.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

constexpr char kJob[] = "night run/7";
constexpr CheckpointName kName = {.run = 2, .step = 500};
constexpr uint32_t kRows = 300, kColumns = 4000;  // several blocks

std::vector<float> Values(size_t count, float first) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = first + static_cast<float>(i % 1000);
  return values;
}

BlockSnapshot Snapshot(uint32_t block, size_t elements, size_t slots) {
  BlockSnapshot saved = {.version = kName.step, .updates = 498, .seeded = true};
  saved.weights = Values(elements, static_cast<float>(block));
  for (size_t slot = 0; slot < slots; ++slot) {
    // Two bytes an element, as for bf16: not always a multiple of 4.
    saved.state.emplace_back(2 * elements, static_cast<std::byte>(1 + slot + block));
  }
  return saved;
}

// A large tensor, a small one and a frozen scalar, saved by two shards.
class Checkpoints : public ::testing::Test {
 protected:
  Checkpoints() : store_(*OpenDirectoryStore(directory_.path())) {
    auto layout = std::make_shared<CheckpointLayout>();
    layout->tensors = {
        {"large", {kRows, kColumns}}, {"small \"q\"", {7}}, {"frozen", {}, true}};
    std::vector<TrainedTensor> trained;
    std::vector<uint64_t> elements;
    for (const CheckpointTensor& tensor : layout->tensors) {
      trained.push_back(
          {.shape = TensorShape(tensor.shape), .group = {.frozen = tensor.frozen}});
      elements.push_back(trained.back().shape.elements());
    }
    settings_.optimizer = {.name = "adamw", .options = {{"lr", 0.1}}, .state = "bf16"};
    layout->plan = *TrainingPlan::Create(settings_, trained);
    layout_ = std::move(layout);
    const auto ranges = CutIntoBlocks(elements);
    for (uint32_t block = 0; block < ranges.size(); ++block) {
      blocks_.push_back({block, ranges[block]});
      saved_[block] = Snapshot(block, ranges[block].elements,
                               layout_->SlotsOf(ranges[block].tensor).size());
    }
    BlockSnapshot& small = saved_.at(static_cast<uint32_t>(ranges.size()) - 2);
    small.accumulated_samples = 0.1;
    small.rate_factor = 0.3F;
    small.accumulator = Values(7, 3);
    saved_[0].view = Values(ranges[0].elements, 0.5F);
  }

  Manifest Describe(const CheckpointName& name) const {
    Manifest manifest = {.job = kJob, .name = name, .tensors = layout_->tensors};
    manifest.declared = manifest.training = settings_;
    manifest.training.optimizer.options["lr"] = 0.01;
    manifest.loss_scaler = {.scale = 1024.5F, .growth_tracker = 3, .hysteresis = 2};
    return manifest;
  }

  // Shard 1 has the first block, shard 0 the others.
  Manifest Write(const CheckpointName& name) {
    Manifest manifest = Describe(name);
    for (const uint32_t shard : {0u, 1u}) {
      PartWriter::Options options = {
          .job = kJob, .name = name, .shard = shard, .layout = layout_};
      for (const ShardBlock& block : blocks_) {
        if ((block.block == 0) == (shard == 1)) options.blocks.push_back(block);
      }
      options.frozen =
          FindSharedPart(*store_, {kJob, name.run, {}, shard, options.FrozenKeys()});
      auto part = *PartWriter::Create(*store_, options);
      for (const ShardBlock& block : options.blocks) {
        BlockSnapshot saved = saved_[block.block];
        saved.version = name.step;
        EXPECT_TRUE(part->Add(block.block, saved).ok());
      }
      ShardSnapshot rest = {.job_memory = {1.5, 2.5}};
      if (shard == 0) rest.factors = {{1, {4, 5, 6}}};
      const auto files = part->Finish(rest);
      EXPECT_TRUE(files.ok()) << files.status();
      manifest.files.insert(manifest.files.end(), files->begin(), files->end());
    }
    EXPECT_TRUE(PutManifest(*store_, manifest).ok());
    return manifest;
  }

  absl::Status ReadAll(const CheckpointName& name) {
    const auto reader = CheckpointReader::Open(*store_, kJob, name);
    return reader.ok() ? (*reader)->Verify() : reader.status();
  }

  std::string PathOf(const CheckpointName& name, const std::string& file) const {
    return directory_.File(FolderOf(kJob, name) + "/" + file);
  }

  static void Change(const std::string& path,
                     const std::function<void(std::string&)>& change) {
    std::ifstream in(path, std::ios::binary);
    std::string bytes((std::istreambuf_iterator<char>(in)), {});
    ASSERT_FALSE(bytes.empty()) << path;
    change(bytes);
    std::ofstream(path, std::ios::binary) << bytes;
  }

  TempDirectory directory_;
  std::unique_ptr<BlobStore> store_;
  TrainingSettings settings_;
  std::shared_ptr<const CheckpointLayout> layout_;
  std::vector<ShardBlock> blocks_;
  std::map<uint32_t, BlockSnapshot> saved_;
};

TEST_F(Checkpoints, WhatWasWrittenByTwoShardsIsReadByAnyOther) {
  const Manifest written = Write(kName);
  const auto reader = *CheckpointReader::Open(*store_, kJob, kName);
  EXPECT_TRUE(reader->Verify().ok()) << reader->Verify();
  EXPECT_TRUE(reader->CheckTensors(layout_->tensors).ok());
  EXPECT_EQ(reader->manifest().training, written.training);
  EXPECT_EQ(reader->manifest().declared, settings_);
  EXPECT_EQ(reader->manifest().loss_scaler.scale, 1024.5F);
  EXPECT_EQ(reader->manifest().loss_scaler.growth_tracker, 3);
  for (const ShardBlock& block : blocks_) {
    const auto part = reader->Read(block, *layout_);
    ASSERT_TRUE(part.ok()) << part.status();
    EXPECT_EQ(part->blocks.at(block.block), saved_[block.block]) << block.block;
  }
  const auto rest = reader->ReadRest(*layout_);
  ASSERT_TRUE(rest.ok()) << rest.status();
  EXPECT_EQ(rest->factors, (std::map<uint32_t, std::vector<float>>{{1, {4, 5, 6}}}));
  EXPECT_EQ(rest->job_memory, (std::vector<double>{1.5, 2.5}));
}

TEST_F(Checkpoints, WhateverIsCutOffChangedOrSwappedIsRefusedByName) {
  Write({1, 1});
  Write(kName);
  const char* files[] = {"manifest.json", "weights-00000.safetensors",
                         "weights-00001.safetensors", "state-00001.safetensors"};
  for (const char* file : files) {
    const std::string path = PathOf(kName, file);
    std::string good;
    Change(path, [&](std::string& bytes) { good = bytes; });
    const std::function<void(std::string&)> changes[] = {
        [](std::string& bytes) { bytes.resize(bytes.size() / 2); },
        [](std::string& bytes) { bytes.resize(bytes.size() - 2); },
        [](std::string& bytes) { bytes[bytes.size() - 5] ^= 1; },
        [](std::string& bytes) { bytes[bytes.size() / 2] ^= 0x10; },
        [](std::string& bytes) { bytes[9] ^= 1; }};
    for (const auto& change : changes) {
      Change(path, change);
      const absl::Status status = ReadAll(kName);
      EXPECT_FALSE(status.ok()) << file;
      EXPECT_THAT(std::string(status.message()), HasSubstr("run2-step500")) << file;
      Change(path, [&](std::string& bytes) { bytes = good; });
    }
    ASSERT_TRUE(ReadAll(kName).ok());
    fs::rename(path, path + ".gone");
    EXPECT_FALSE(ReadAll(kName).ok()) << file;
    fs::rename(path + ".gone", path);
  }
  // Swap two files of the same kind; then use the manifest of another checkpoint.
  fs::rename(PathOf(kName, files[1]), PathOf(kName, "x"));
  fs::rename(PathOf(kName, files[2]), PathOf(kName, files[1]));
  fs::rename(PathOf(kName, "x"), PathOf(kName, files[2]));
  EXPECT_EQ(ReadAll(kName).code(), absl::StatusCode::kDataLoss);
  fs::copy_file(PathOf(kName, files[0]), PathOf({1, 1}, files[0]),
                fs::copy_options::overwrite_existing);
  EXPECT_THAT(std::string(ReadAll({1, 1}).message()), HasSubstr("it belongs to"));
}

TEST_F(Checkpoints, ANewerFormatIsRefusedWithBothNumbers) {
  Write(kName);
  Change(PathOf(kName, kManifestFile), [](std::string& bytes) {
    const size_t at = bytes.find("\"format\": 2");
    ASSERT_NE(at, std::string::npos);
    bytes[at + 10] = '3';
  });
  const absl::Status status = ReadAll(kName);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("format 3"));
}

TEST_F(Checkpoints, AnotherModelOrOptimizerIsNamed) {
  Write(kName);
  const auto reader = *CheckpointReader::Open(*store_, kJob, kName);
  auto tensors = layout_->tensors;
  tensors[1].shape = {8};
  EXPECT_THAT(std::string(reader->CheckTensors(tensors).message()),
              HasSubstr("tensor 1 is 'small \"q\"' of [7] there"));
  CheckpointLayout other = *layout_;
  std::vector<TrainedTensor> trained(3);
  settings_.optimizer = {.name = "sgd", .options = {{"momentum", 0.9}}};
  other.plan = *TrainingPlan::Create(settings_, trained);
  EXPECT_THAT(std::string(reader->Read(blocks_[0], other).status().message()),
              HasSubstr("was made with another optimizer"));
}

TEST_F(Checkpoints, ExportIsOneFileOfWholeTensors) {
  Write(kName);
  const auto reader = *CheckpointReader::Open(*store_, kJob, kName);
  ASSERT_TRUE(reader->Export(*store_, "all.safetensors").ok());
  std::ifstream in(directory_.File("all.safetensors"), std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(in)), {});
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  const auto head = ParseHead(bytes.substr(0, 8 + length), bytes.size() - 8 - length);
  ASSERT_TRUE(head.ok()) << head.status();
  const SafetensorsEntry& large = head->entries.at("large");
  EXPECT_EQ(large.shape, (std::vector<uint64_t>{kRows, kColumns}));
  std::vector<float> weights;
  for (const ShardBlock& block : blocks_) {
    if (block.range.tensor != 0) continue;
    const std::vector<float>& more = saved_.at(block.block).weights;
    weights.insert(weights.end(), more.begin(), more.end());
  }
  ASSERT_EQ(large.end - large.begin, weights.size() * sizeof(float));
  EXPECT_EQ(std::memcmp(weights.data(), bytes.data() + 8 + length + large.begin,
                        weights.size() * sizeof(float)),
            0);
}

TEST_F(Checkpoints, TheLatestIsThatOfTheLastRunWhateverItsStep) {
  EXPECT_EQ(FindBeginning(*store_, kJob, "auto")->run, 1);
  EXPECT_FALSE(FindBeginning(*store_, kJob, "auto")->resumes);
  EXPECT_EQ(FindBeginning(*store_, kJob, "latest").status().code(),
            absl::StatusCode::kNotFound);
  Write({1, 500});
  Write({2, 300});
  // A checkpoint that was begun but not finished.
  ASSERT_TRUE((*store_->Create(FolderOf(kJob, {3, 400}) + "/x", 0))->Finish({}).ok());
  const auto latest = *FindBeginning(*store_, kJob, "auto");
  EXPECT_EQ(latest.run, 4);
  EXPECT_EQ(latest.from.name, (CheckpointName{2, 300}));
  EXPECT_EQ(FindBeginning(*store_, kJob, "run1-step500")->from.name.run, 1);
  EXPECT_FALSE(FindBeginning(*store_, kJob, "never")->resumes);
  EXPECT_EQ(FindBeginning(*store_, kJob, "yes").status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(FindBeginning(*store_, kJob, "run9-step1").status().message()),
              HasSubstr("there are 2 from run1-step500 to run2-step300"));
  // A job's name is not a path.
  EXPECT_FALSE(FindBeginning(*store_, "night run", "auto")->resumes);
  EXPECT_EQ(FolderOf("../x"), "%2E.%2Fx");
}

TEST_F(Checkpoints, RetentionKeepsTheLastAndDeletesWhatWasLeftUnfinished) {
  for (const uint64_t step : {1, 2, 3, 4}) Write({1, step});
  const std::string left = FolderOf(kJob, {1, 3}) + "/" + kManifestFile;
  ASSERT_TRUE(store_->Delete(left).ok());
  ASSERT_TRUE(Retain(*store_, kJob, {1, 4}, 2).ok());
  std::vector<uint64_t> steps;
  const auto left_over = *ListCheckpoints(*store_, FolderOf(kJob));
  for (const CheckpointInfo& one : left_over) {
    EXPECT_TRUE(one.is_complete);
    steps.push_back(one.name.step);
  }
  EXPECT_EQ(steps, (std::vector<uint64_t>{2, 4}));
}

TEST_F(Checkpoints, RetentionOfARunLeavesThoseOfLaterRunsAlone) {
  const auto kept = [&] {
    const auto all = *ListCheckpoints(*store_, FolderOf(kJob));
    std::vector<std::string> names;
    for (const CheckpointInfo& one : all) names.push_back(one.name.ToString());
    return names;
  };
  for (const CheckpointName& name : {CheckpointName{6, 10}, {5, 1}, {5, 2}}) Write(name);
  ASSERT_TRUE(Retain(*store_, kJob, {5, 2}, 1).ok());
  EXPECT_EQ(kept(), (std::vector<std::string>{"run5-step2", "run6-step10"}));
  ASSERT_TRUE(Retain(*store_, kJob, {6, 10}, 1).ok());
  EXPECT_EQ(kept(), (std::vector<std::string>{"run6-step10"}));
}

TEST_F(Checkpoints, APartThatIsGivenUpLeavesNothing) {
  {
    auto part = *PartWriter::Create(
        *store_, {.job = "x", .name = kName, .layout = layout_, .blocks = blocks_});
    EXPECT_TRUE(part->Add(0, saved_[0]).ok());
  }
  EXPECT_TRUE(store_->List("")->empty());
}

TEST_F(Checkpoints, ADeepManifestOrHeadIsRefused) {
  const std::string deep = R"({"format":1,"crc32c":1,"x":)" + std::string(1000000, '[') +
                           std::string(1000000, ']') + "}";
  EXPECT_EQ(ParseManifest(deep).status().code(), absl::StatusCode::kDataLoss);
  std::string head(8, '\0');
  const uint64_t length = deep.size();
  std::memcpy(head.data(), &length, sizeof(length));
  EXPECT_FALSE(ParseHead(head + deep, 0).ok());
}

TEST_F(Checkpoints, PartsThatAreElsewhereOrCutAreNamed) {
  const Manifest manifest = Write(kName);
  EXPECT_TRUE(CheckParts(*store_, manifest).ok());
  const CheckpointFile& file = manifest.files.back();
  Change(PathOf(kName, file.name), [](std::string& bytes) { bytes.pop_back(); });
  const absl::Status cut = CheckParts(*store_, manifest);
  EXPECT_EQ(cut.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(cut.message()), HasSubstr(file.name));

  TempDirectory elsewhere;
  const auto other = *OpenDirectoryStore(elsewhere.path());
  const absl::Status none = CheckParts(*other, manifest);
  EXPECT_THAT(std::string(none.message()), HasSubstr("no such file"));
  EXPECT_THAT(std::string(none.message()), HasSubstr("--checkpoint-dir"));
}

TEST_F(Checkpoints, AManifestThatMakesNoSenseIsRefused) {
  const Manifest good = Write(kName);
  const std::pair<std::function<void(Manifest&)>, const char*> changes[] = {
      {[](Manifest& bad) { bad.tensors.clear(); }, "0 tensors"},
      {[](Manifest& bad) { bad.tensors.pop_back(); }, "'frozen' belongs to no tensor"},
      {[](Manifest& bad) {
         bad.tensors.push_back({"more", {9}});
       },
       "lacks the weights"},
      {[](Manifest& bad) { bad.tensors[1].name = "large"; }, "two tensors are 'large'"},
      {[](Manifest& bad) {
         bad.tensors[0].shape = {1u << 31, 1u << 31, 8};
       },
       "elements"},
      {[](Manifest& bad) { bad.tensors[0].shape.assign(9, 1); }, "9 dimensions"},
      {[](Manifest& bad) { bad.tensors[0].shape = {kRows}; }, "beyond its tensor"},
      {[](Manifest& bad) { bad.loss_scaler.scale = -2; }, "a loss scale of -2"},
      {[](Manifest& bad) { bad.files[0].name = "../x"; }, "is not a file name"},
      {[](Manifest& bad) { bad.files[0].head_bytes = 1u << 30; }, "has a head of"},
      {[](Manifest& bad) { bad.files[0].bytes += uint64_t{1} << 40; }, "manifest says"}};
  for (const auto& [change, why] : changes) {
    Manifest bad = good;
    change(bad);
    ASSERT_TRUE(PutManifest(*store_, bad).ok());
    const absl::Status status = ReadAll(kName);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << why;
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
    EXPECT_THAT(std::string(status.message()), HasSubstr("run2-step500"));
  }
  // The parts are of another step than the manifest.
  Write({2, 400});
  for (const CheckpointFile& file : good.files) {
    if (IsShared(file)) continue;
    fs::copy_file(PathOf({2, 400}, file.name), PathOf(kName, file.name),
                  fs::copy_options::overwrite_existing);
  }
  Manifest other = *ReadManifest(*store_, kJob, {2, 400});
  other.name = kName;
  ASSERT_TRUE(PutManifest(*store_, other).ok());
  EXPECT_THAT(std::string(ReadAll(kName).message()), HasSubstr("is of step 400"));
}

TEST_F(Checkpoints, APipeIsNotWaitedForAndLinkedFoldersAreSeen) {
  Write(kName);
  const std::string path = PathOf(kName, "weights-00000.safetensors");
  std::vector<std::byte> some(8);
  fs::rename(path, path + ".old");
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_THAT(std::string(ReadAll(kName).message()), HasSubstr("not a regular file"));
  const std::string name = FolderOf(kJob, kName) + "/weights-00000.safetensors";
  EXPECT_EQ(store_->Read(name, 0, some).code(), absl::StatusCode::kDataLoss);
  fs::remove(path);
  fs::rename(path + ".old", path);

  TempDirectory linked;
  fs::create_directory_symlink(directory_.File(FolderOf(kJob)),
                               linked.File(FolderOf(kJob)));
  fs::create_directory_symlink(directory_.path(), directory_.File("loop"));
  const auto store = *OpenDirectoryStore(linked.path());
  EXPECT_EQ(ListCheckpoints(*store, FolderOf(kJob))->size(), 1);
  EXPECT_TRUE((*CheckpointReader::Open(*store, kJob, kName))->Verify().ok());
}

TEST_F(Checkpoints, FoldersOfJobsAreNamesOfFilesHoweverLongTheirNamesAre) {
  std::string job;
  for (int i = 0; i < 120; ++i) job += "\u00fc";
  for (const std::string& one : {job, job + "x", std::string(512, 'j')}) {
    const std::string folder = FolderOf(one);
    EXPECT_LE(folder.size(), 255);
    EXPECT_TRUE((*store_->Create(folder + "/x", 0))->Finish({}).ok());
  }
  EXPECT_EQ(store_->List("")->size(), 3) << "no two are the same";
}

TEST_F(Checkpoints, ARunIsClaimedOnceAndLeavesThatOfAnotherAlone) {
  Write({4, 500});
  EXPECT_EQ(*ClaimRun(*store_, kJob, FindBeginning(*store_, kJob, "auto")->run), 5);
  EXPECT_EQ(*ClaimRun(*store_, kJob, FindBeginning(*store_, kJob, "auto")->run), 6);
  EXPECT_EQ(*ClaimRun(*store_, "other", 1), 1);
  // Another coordinator is writing run 5.
  ASSERT_TRUE((*store_->Create(FolderOf(kJob, {5, 10}) + "/x", 0))->Finish({}).ok());
  Write({6, 20});
  ASSERT_TRUE(Retain(*store_, kJob, {6, 20}, 1).ok());
  EXPECT_EQ(ListCheckpoints(*store_, FolderOf(kJob))->size(), 2);
  const fs::path left = PathOf({5, 10}, "x");
  fs::last_write_time(left, fs::last_write_time(left) - std::chrono::hours(2));
  ASSERT_TRUE(Retain(*store_, kJob, {6, 20}, 1).ok());
  EXPECT_EQ(ListCheckpoints(*store_, FolderOf(kJob))->size(), 1);

  Write({4294967295, 500});
  EXPECT_THAT(std::string(FindBeginning(*store_, kJob, "auto").status().message()),
              HasSubstr("there is no run after run4294967295"));
}

TEST(CheckpointParts, OfEveryOptimizerAreLoadedByAShard) {
  for (const std::string_view name : OptimizerNames()) {
    SCOPED_TRACE(name);
    const TrainingSettings training = {.optimizer = {.name = std::string(name)},
                                       .accumulate_steps = 2};
    ShardRig rig({.training = training});
    rig.Commit(1, {rig.Member(0)});
    rig.Seed(0, SomeValues(100, 1));
    for (uint64_t step = 0; step < 3; ++step) {
      for (const ShardOutput& output : rig.Push(0, 0, step)) {
        const auto* figures = std::get_if<ShardFigures>(&output);
        if (figures == nullptr) continue;
        const auto& sums = figures->figures;
        rig.shard().Apply(
            ShardDecision{.step = step, .figures = {sums.begin() + 1, sums.end()}});
      }
    }
    ShardSnapshot saved = *rig.shard().Save();
    std::erase_if(saved.factors, [](const auto& one) { return one.second.empty(); });
    auto layout = std::make_shared<CheckpointLayout>();
    layout->tensors = {{"w", {100}}};
    const std::vector<TrainedTensor> trained = {
        {.shape = TensorShape(layout->tensors[0].shape)}};
    layout->plan = *TrainingPlan::Create(training, trained);
    const ShardBlock block = {0, {0, 0, 100}};
    TempDirectory directory;
    const auto store = *OpenDirectoryStore(directory.path());
    const CheckpointName at = {.run = 2, .step = saved.blocks.at(0).version};
    auto part = *PartWriter::Create(
        *store, {.job = kJob, .name = at, .layout = layout, .blocks = {block}});
    const absl::Status added = part->Add(0, saved.blocks.at(0));
    ASSERT_TRUE(added.ok()) << added;
    Manifest manifest = {.job = kJob, .name = at, .tensors = layout->tensors};
    manifest.files = *part->Finish(saved);
    ASSERT_TRUE(PutManifest(*store, manifest).ok());
    const auto reader = *CheckpointReader::Open(*store, kJob, at);
    ShardRig other({.training = training});
    const absl::Status loaded = other.shard().Load(*reader->Read(block, *layout));
    ASSERT_TRUE(loaded.ok()) << loaded;
    ASSERT_TRUE(other.shard().Load(*reader->ReadRest(*layout)).ok());
    const ShardSnapshot again = *other.shard().Save();
    EXPECT_EQ(again.blocks.at(0), saved.blocks.at(0));
    EXPECT_FALSE(again.blocks.at(0).accumulator.empty());
    EXPECT_EQ(again.factors, saved.factors);
    EXPECT_EQ(again.job_memory, saved.job_memory);
  }
}

// testdata/ was written once, by the first version. All later versions must read it.
TEST(CheckpointFormat, ThatOfTheFirstVersionStaysReadable) {
  const auto store = *OpenExistingDirectoryStore(CHECKPOINT_TESTDATA);
  const auto beginning = FindBeginning(*store, "golden", "latest");
  ASSERT_TRUE(beginning.ok()) << beginning.status();
  const auto reader = CheckpointReader::Open(*store, "golden", beginning->from.name);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_TRUE((*reader)->Verify().ok());
  EXPECT_EQ((*reader)->manifest().name.step, 20);
  CheckpointLayout layout = {.tensors = (*reader)->manifest().tensors};
  std::vector<TrainedTensor> trained;
  for (const auto& tensor : layout.tensors) {
    trained.push_back({.shape = TensorShape(tensor.shape)});
  }
  layout.plan = *TrainingPlan::Create((*reader)->manifest().training, trained);
  const auto part = (*reader)->Read({0, {0, 0, 300}}, layout);
  ASSERT_TRUE(part.ok()) << part.status();
  EXPECT_EQ(part->blocks.at(0).updates, 20);
  EXPECT_EQ(part->blocks.at(0).state.size(), 2);
}

}  // namespace
}  // namespace syncline
