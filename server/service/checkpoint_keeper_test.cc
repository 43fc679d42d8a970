#include "server/service/checkpoint_keeper.h"

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "comm/base/temp_directory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/checkpoint/directory_store.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;

constexpr CheckpointName kName = {.run = 1, .step = 10};

// Orders the keeper to complete a checkpoint for which a server reported a part of ten
// bytes. In the store the part has `there` bytes; 0: it does not exist.
absl::Status Keep(size_t there, BlobStore& store) {
  std::optional<absl::Status> kept;
  CheckpointKeeper keeper(store, Logger(), [&](const CheckpointAnswer& answer) {
    kept = std::get<CheckpointKept>(answer).status;
  });
  if (there > 0) {
    const auto part = *store.Create(FolderOf("job", kName) + "/weights", 0);
    const std::vector<std::byte> bytes(there);
    EXPECT_TRUE(part->Append(bytes).ok());
    EXPECT_TRUE(part->Finish({}).ok());
  }
  KeepCheckpoint order = {.job = 1, .declared = std::make_shared<DeclaredJob>()};
  order.manifest = {.job = "job", .name = kName};
  order.manifest.tensors = {{.name = "w", .shape = {1}}};
  order.manifest.files = {{.name = "weights", .bytes = 10}};
  keeper.Order(order);
  keeper.Stop();  // ends the wait for files that appear late
  return kept.value_or(absl::InternalError("no answer"));
}

TEST(CheckpointKeeper, CompletesWhatIsThere) {
  TempDirectory directory;
  const auto store = *OpenDirectoryStore(directory.path());
  EXPECT_TRUE(Keep(10, *store).ok());
  EXPECT_TRUE(ReadManifest(*store, "job", kName).ok());
}

TEST(CheckpointKeeper, WritesNoManifestOfPartsThatAreElsewhereOrCut) {
  for (const size_t there : {0, 9}) {
    TempDirectory directory;
    const auto store = *OpenDirectoryStore(directory.path());
    const absl::Status kept = Keep(there, *store);
    EXPECT_TRUE(absl::IsFailedPrecondition(kept)) << kept;
    EXPECT_THAT(std::string(kept.message()), HasSubstr("--checkpoint-dir"));
    EXPECT_FALSE(ReadManifest(*store, "job", kName).ok());
  }
}

TEST(CheckpointKeeper, GivesEachCoordinatorOfADirectoryARunOfItsOwn) {
  TempDirectory directory;
  const auto store = *OpenDirectoryStore(directory.path());
  std::vector<uint32_t> runs;
  for (int coordinator = 0; coordinator < 2; ++coordinator) {
    CheckpointKeeper keeper(*store, Logger(), [&](const CheckpointAnswer& answer) {
      runs.push_back(std::get<CheckpointFound>(answer).beginning->run);
    });
    keeper.Order(FindCheckpoint{.job = 1, .name = "job", .resume = "auto"});
    keeper.Stop();
  }
  EXPECT_EQ(runs, (std::vector<uint32_t>{1, 2}));
}

TEST(CheckpointKeeper, SaysWhenAllOrdersBeforeAreCarriedOut) {
  TempDirectory directory;
  const auto store = *OpenDirectoryStore(directory.path());
  std::vector<size_t> left;
  CheckpointKeeper keeper(*store, Logger(), [&](const CheckpointAnswer& answer) {
    EXPECT_EQ(std::get<CheckpointsSettled>(answer).job, 3);
    left.push_back(store->List("job")->size());
  });
  ASSERT_TRUE((*store->Create(FolderOf("job", kName) + "/weights", 0))->Finish({}).ok());
  keeper.Order(DiscardCheckpoint{"job", kName});
  keeper.Order(SettleCheckpoints{3});
  keeper.Stop();
  EXPECT_EQ(left, (std::vector<size_t>{0}));
}

}  // namespace
}  // namespace syncline
