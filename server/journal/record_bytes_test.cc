// Records as bytes: reading gives what was written, or an error.
#include <cstddef>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/journal/record_bytes.h"
#include "server/journal/record_player.h"
#include "server/shard/recorded_job_test_util.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;

std::vector<std::byte> BytesOf(const ShardRecord& record) {
  const RecordBytes written = WriteRecord(record);
  const Buffer bytes = Gather({Slice::Borrowed(ByteView(written.head)), written.payload});
  return {bytes.view().begin(), bytes.view().end()};
}

// A job with all kinds of records: those of a backup that began during the job.
RecordCase EveryKind() {
  RecordCase one = {.publish = "onebit:min_elements=0,vectors=1",
                    .tensors = {300, kBlockElements + 3}};
  one.training = {.optimizer = {.name = "lamb", .options = {{"lr", 0.01}}}};
  one.training.accumulate_steps = 3;
  one.training.gradient["clip_global_norm"] = 1;
  one.training.loss_scaling = {.name = "torch", .values = {{"init_scale", 1024}}};
  return one;
}

TEST(RecordBytes, AreTheRecord) {
  const RecordCase one = EveryKind();
  RecordedJob job(one, 17);
  LiveThroughALot(job, one.training);
  ASSERT_TRUE(job.is_backed_up());
  ShardRig again(OptionsFor(one, Records::kNone));
  RecordPlayer player(again.shard(), {.records = "records", .whose = "the job"});
  for (const auto& record : job.records()) {
    auto read = ReadRecord(BytesOf(*record));
    ASSERT_TRUE(read.ok()) << read.status();
    const absl::Status played = player.Take(*std::move(read));
    ASSERT_TRUE(played.ok()) << played;
  }
  const auto expected = job.rig().shard().Save();
  const auto got = again.shard().Save();
  ASSERT_TRUE(expected.ok() && got.ok());
  EXPECT_EQ(got->blocks, expected->blocks);
  EXPECT_EQ(got->job_memory, expected->job_memory);
  EXPECT_EQ(got->loss_scale, expected->loss_scale);
}

TEST(RecordBytes, CutShortAreNoRecordOrPlayNothing) {
  RecordCase one = EveryKind();
  one.tensors = {30};
  RecordedJob job(one, 4);
  job.Step(0);
  for (const auto& record : job.records()) {
    const std::vector<std::byte> bytes = BytesOf(*record);
    for (size_t size = 0; size < bytes.size(); ++size) {
      ShardRig again(OptionsFor(one, Records::kNone));
      auto read = ReadRecord({bytes.data(), size});
      EXPECT_FALSE(read.ok() && again.shard().Replay(*read).ok()) << size;
    }
  }
}

TEST(RecordPlayer, SaysThatRecordsAreOfAnotherShard) {
  const RecordCase one = {.training = Momentum(), .tensors = {300, 20}};
  RecordedJob job(one);
  job.Step(0);
  ShardRig smaller(
      OptionsFor({.training = Momentum(), .tensors = {300}}, Records::kNone));
  RecordPlayer player(smaller.shard(), {.records = "the journal's records"});
  absl::Status status;
  for (const auto& record : job.records()) status.Update(player.Take(*record));
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("records contain block 1, which does not belong to this shard"));
}

}  // namespace
}  // namespace syncline
