// Tests of BackupShard: what it has played is what the server had, or Finish fails.
#include "server/service/backup_shard.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include "server/journal/record_bytes.h"
#include "server/shard/shard_test_util.h"

namespace syncline {
namespace {

RigOptions Rig(Records records) {
  TrainingSettings training;
  training.optimizer = {.name = "adamw", .options = {{"lr", 0.01}}};
  return {.codec = "bf16",
          .training = std::move(training),
          .tensors = {300, 20},
          .records = records};
}

// Has a server's shard with its records, and the backup of that shard.
class BackupShardTest : public ::testing::Test {
 protected:
  BackupShardTest() {
    Do(server_.Commit(1, {server_.Member(0)}));
    for (uint32_t block = 0; block < 2; ++block) {
      Do(server_.Seed(block, SomeValues(server_.range(block).elements, block)));
    }
  }
  void Do(const ShardOutputs& outputs) {
    for (const ShardOutput& output : outputs) {
      const auto* recorded = std::get_if<ShardRecorded>(&output);
      if (recorded != nullptr) records_.push_back(Bytes(*recorded->record));
    }
    for (const ShardOutput& output :
         server_.shard().Apply(ShardDurable{records_.size()})) {
      EXPECT_FALSE(std::holds_alternative<ShardRecorded>(output));
    }
  }
  static std::vector<std::byte> Bytes(const ShardRecord& record) {
    const RecordBytes written = WriteRecord(record);
    const Buffer all = Gather({Slice::Borrowed(ByteView(written.head)), written.payload});
    return {all.data(), all.data() + all.size()};
  }
  void Step(uint64_t step) {
    for (uint32_t block = 0; block < 2; ++block) Do(server_.Push(0, block, step));
  }
  std::unique_ptr<BackupShard> Backup(uint64_t room_bytes = uint64_t{1} << 30) {
    BackupShardOptions options = {.trained = {0, 1},
                                  .whose = "what server 5 has",
                                  .room_bytes = room_bytes,
                                  .on_room = [this] { room_.Notify(); },
                                  .on_lost =
                                      [this](const absl::Status& why) {
                                        why_ = why;
                                        lost_.Notify();
                                      }};
    return std::make_unique<BackupShard>(std::move(options),
                                         EngineJob{.shard = copy_.GiveShard()});
  }

  ShardRig server_{Rig(Records::kAwaited)};
  ShardRig copy_{Rig(Records::kNone)};
  std::vector<std::vector<std::byte>> records_;
  absl::Notification room_;
  absl::Notification lost_;
  absl::Status why_;
};

TEST_F(BackupShardTest, GivesOutWhatTheServerHad) {
  Step(0);
  Step(1);
  const auto backup = Backup();
  for (const auto& record : records_) EXPECT_TRUE(backup->Take(record).value());
  const auto finished = backup->Finish();
  ASSERT_TRUE(finished.ok()) << finished.status();
  EXPECT_EQ(finished->step, 2u);
  for (uint32_t block = 0; block < 2; ++block) {
    EXPECT_EQ(finished->part.shard->block_version(block), 2u);
    EXPECT_EQ(finished->part.shard->block_digest(block),
              server_.shard().block_digest(block));
  }
  EXPECT_EQ(backup->Take(records_[0]).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(BackupShardTest, TheLowestBlockIsWhereItEnds) {
  Step(0);
  Do(server_.Push(0, 1, 1));
  const auto backup = Backup();
  for (const auto& record : records_) ASSERT_TRUE(backup->Take(record).ok());
  EXPECT_EQ(backup->Finish()->step, 1u);
}

// One record of a block is missing, so the block's next record cannot be played.
TEST_F(BackupShardTest, WhatLeadsElsewhereIsLost) {
  Step(0);
  Step(1);
  const auto backup = Backup();
  for (size_t i = 0; i < records_.size(); ++i) {
    if (i == 3) continue;  // a block of step 0
    if (!backup->Take(records_[i]).ok()) break;
  }
  lost_.WaitForNotification();
  EXPECT_TRUE(absl::IsDataLoss(why_)) << why_;
  EXPECT_TRUE(absl::IsDataLoss(backup->Take(records_[0]).status()));
  EXPECT_TRUE(absl::IsDataLoss(backup->Finish().status()));
}

TEST_F(BackupShardTest, WhatIsNoRecordIsLost) {
  const auto backup = Backup();
  ASSERT_TRUE(backup->Take(std::vector<std::byte>(5, std::byte{200})).ok());
  lost_.WaitForNotification();
  EXPECT_TRUE(absl::IsDataLoss(why_)) << why_;
}

TEST_F(BackupShardTest, SaysWhenThereIsRoomAgain) {
  const auto backup = Backup(0);
  EXPECT_FALSE(backup->Take(records_[0]).value());
  room_.WaitForNotification();
}

// The thread ends with the backup, even if records wait to be played.
TEST_F(BackupShardTest, EndsWithRecordsLeft) {
  for (uint64_t step = 0; step < 20; ++step) Step(step);
  const auto backup = Backup();
  for (const auto& record : records_) ASSERT_TRUE(backup->Take(record).ok());
}

}  // namespace
}  // namespace syncline
