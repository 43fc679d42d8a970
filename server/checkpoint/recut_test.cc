// Reading checkpoints whose tensors were cut into other blocks than this version makes.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/base/temp_directory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/checkpoint/catalog.h"
#include "server/checkpoint/directory_store.h"
#include "server/checkpoint/part.h"
#include "server/checkpoint/reader.h"
#include "server/optimizer/state_storage.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;

constexpr char kJob[] = "recut";
constexpr CheckpointName kName = {.run = 1, .step = 20};
constexpr uint64_t kElements = 5000;
constexpr uint32_t kPiece = 1024;

std::shared_ptr<const CheckpointLayout> LayoutWith(const std::string& state) {
  auto layout = std::make_shared<CheckpointLayout>();
  layout->tensors = {{"w", {50, 100}}};
  const TrainingSettings training = {
      .optimizer = {.name = "adamw", .options = {{"lr", 0.1}}, .state = state}};
  const std::vector<TrainedTensor> trained = {
      {.shape = TensorShape(layout->tensors[0].shape)}};
  layout->plan = *TrainingPlan::Create(training, trained);
  return layout;
}

// Returns bytes of a fixed sequence, so that each byte shows which position it came from.
std::vector<std::byte> BytesFrom(size_t first, size_t count) {
  std::vector<std::byte> bytes(count);
  for (size_t i = 0; i < count; ++i) {
    bytes[i] = static_cast<std::byte>(((first + i) * 2654435761U) >> 13);
  }
  return bytes;
}

// Returns the expected content of a block with these elements.
BlockSnapshot Expected(const CheckpointLayout& layout, uint64_t first,
                       uint64_t elements) {
  BlockSnapshot saved = {
      .version = kName.step, .updates = 19, .seeded = true, .rate_factor = 0.5F};
  for (uint64_t i = first; i < first + elements; ++i) {
    saved.weights.push_back(static_cast<float>(i) / 7);
    saved.view.push_back(static_cast<float>(i) / 3);
  }
  for (size_t slot = 0; slot < layout.SlotsOf(0).size(); ++slot) {
    const StateType type = layout.StateTypeOf(0, slot);
    const size_t begin = StateBytes(type, first);
    saved.state.push_back(
        BytesFrom(begin + slot, StateBytes(type, first + elements) - begin));
  }
  return saved;
}

// Writes a checkpoint like a version that cut after every 1024 elements, on two servers.
Manifest WriteInPieces(BlobStore& store,
                       const std::shared_ptr<const CheckpointLayout>& layout,
                       uint64_t later_updates = 19) {
  Manifest manifest = {.job = kJob, .name = kName, .tensors = layout->tensors};
  manifest.training = manifest.declared = layout->plan->settings();
  for (const uint32_t shard : {0u, 1u}) {
    std::vector<ShardBlock> blocks;
    for (uint32_t i = shard; i * kPiece < kElements; i += 2) {
      const uint64_t first = uint64_t{i} * kPiece;
      const auto elements =
          static_cast<uint32_t>(std::min<uint64_t>(kPiece, kElements - first));
      blocks.push_back({i, {0, first, elements}});
    }
    auto part = *PartWriter::Create(
        store,
        {.job = kJob, .name = kName, .shard = shard, .layout = layout, .blocks = blocks});
    for (const ShardBlock& block : blocks) {
      BlockSnapshot saved =
          Expected(*layout, block.range.first_element, block.range.elements);
      if (block.block > 1) saved.updates = later_updates;
      EXPECT_TRUE(part->Add(block.block, saved).ok());
    }
    const auto files = part->Finish({});
    EXPECT_TRUE(files.ok()) << files.status();
    manifest.files.insert(manifest.files.end(), files->begin(), files->end());
  }
  EXPECT_TRUE(PutManifest(store, manifest).ok());
  return manifest;
}

void ExpectTheSame(const CheckpointReader& reader, const CheckpointLayout& layout) {
  const std::pair<uint64_t, uint32_t> blocks[] = {
      {0, kElements}, {0, 1024}, {256, 512}, {2048, 2048}, {4096, 904}, {768, 4232}};
  for (const auto& [first, elements] : blocks) {
    const auto part = reader.Read({9, {0, first, elements}}, layout);
    ASSERT_TRUE(part.ok()) << part.status();
    EXPECT_EQ(part->blocks.at(9), Expected(layout, first, elements)) << first;
  }
}

TEST(RecutCheckpoints, HaveTheSameBytesInBlocksOfAnotherCut) {
  for (const char* state : {"f32", "bf16", "int8"}) {
    SCOPED_TRACE(state);
    TempDirectory directory;
    const auto store = *OpenDirectoryStore(directory.path());
    const auto layout = LayoutWith(state);
    WriteInPieces(*store, layout);
    const auto reader = CheckpointReader::Open(*store, kJob, kName);
    ASSERT_TRUE(reader.ok()) << reader.status();
    EXPECT_TRUE((*reader)->Verify().ok());
    ExpectTheSame(**reader, *layout);
    // 256 elements share a scale, so state can only be cut at multiples of 256.
    EXPECT_THAT(
        std::string((*reader)->Read({9, {0, 100, 300}}, *layout).status().message()),
        HasSubstr("cannot be split where this version"));
    ASSERT_TRUE((*reader)->Export(*store, "all.safetensors").ok());
  }
}

TEST(RecutCheckpoints, AreNotJoinedOfPiecesThatAreNotEquallyFar) {
  TempDirectory directory;
  const auto store = *OpenDirectoryStore(directory.path());
  const auto layout = LayoutWith("f32");
  WriteInPieces(*store, layout, 18);
  const auto reader = *CheckpointReader::Open(*store, kJob, kName);
  EXPECT_TRUE(reader->Read({0, {0, 0, 1024}}, *layout).ok());
  EXPECT_THAT(std::string(reader->Read({0, {0, 0, 5000}}, *layout).status().message()),
              HasSubstr("has a different progress"));
}

// testdata/recut was written once, in pieces of 1024 elements. All later versions must
// read it.
TEST(RecutCheckpoints, OfTheFirstVersionStayReadable) {
  const auto store = *OpenExistingDirectoryStore(CHECKPOINT_TESTDATA);
  const auto reader = CheckpointReader::Open(*store, kJob, kName);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_TRUE((*reader)->Verify().ok());
  ExpectTheSame(**reader, *LayoutWith("bf16"));
}

}  // namespace
}  // namespace syncline
