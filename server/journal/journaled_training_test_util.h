// A training whose shard emits records, and files of them. Tests only.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "server/journal/record_bytes.h"
#include "server/journal/segment.h"
#include "server/shard/shard_test_util.h"

namespace syncline {

inline constexpr uint32_t kJob = 7;
inline constexpr uint32_t kShardOfRig = 3;
inline constexpr uint64_t kTensors[] = {300, 20};

inline std::vector<std::byte> ReadSegment(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(in), {});
  const auto* data = reinterpret_cast<const std::byte*>(bytes.data());
  return {data, data + bytes.size()};
}

inline void WriteSegment(const std::string& path, ByteView bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(reinterpret_cast<const char*>(bytes.data()),
            static_cast<std::streamsize>(bytes.size()));
}

inline RigOptions JournaledRig() {
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

inline std::vector<std::byte> BytesOfRecord(const ShardRecord& record) {
  const RecordBytes written = WriteRecord(record);
  std::vector<std::byte> bytes = written.head;
  bytes.insert(bytes.end(), written.payload.data,
               written.payload.data + written.payload.size);
  return bytes;
}

inline SegmentHead SomeHead() {
  return {.job = "night",
          .specification = "bytes",
          .created_unix_ms = 1000,
          .shard = kShardOfRig,
          .blocks = {0, 1},
          .checkpoint_run = 2,
          .began_from = CheckpointName{1, 40}};
}

}  // namespace syncline
