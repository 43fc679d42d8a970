// A part of a checkpoint: what one shard holds, in two safetensors files. In the first are
// weights only, so that anything that reads safetensors has them; in the second all that
// the servers need besides.
//
//   weights-00003.safetensors   fc1.weight                      [10, 128]  a whole tensor
//                               fc2.weight[0:1048576]           [1048576]  a piece of one
//   state-00003.safetensors     fc1.weight/exp_avg              state of the optimizer
//                               fc2.weight[0:1048576]//view     what workers hold
//                               fc2.weight[0:1048576]//sum      of pushes so far
//                               fc1.weight//factors             of tensors stepped whole
//                               /job_memory-00003                   the same in all
//
// Pieces are blocks (comm/base/tiling.h), the same on any number of servers. Metadata of
// an entry's name has the CRC-32C of its bytes and, of weights, how far the block is.
//
//   auto part = *PartWriter::Create(store, {.folder = ..., .shard = 3, ...});
//   part->Add(block, snapshot);  // in any order
//   std::vector<CheckpointFile> files = *part->Finish(rest);
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/base/tiling.h"
#include "server/checkpoint/blob_store.h"
#include "server/checkpoint/manifest.h"
#include "server/checkpoint/safetensors.h"
#include "server/optimizer/training.h"
#include "server/shard/shard.h"

namespace syncline {

inline constexpr char kJobMemory[] = "/job_memory";
inline constexpr char kWeightsFile[] = "weights";
inline constexpr char kStateFile[] = "state";

// Behind a key. No optimizer's state has such a name: "sum" is one of Adagrad's.
inline constexpr char kViewOf[] = "//view";
inline constexpr char kSumOf[] = "//sum";
inline constexpr char kFactorsOf[] = "//factors";

// The tensors of a job, as they are named in files.
struct CheckpointLayout {
  std::vector<CheckpointTensor> tensors = {};
  std::shared_ptr<const TrainingPlan> plan = {};  // names the slots

  // "fc2.weight[0:1048576]", or "fc1.weight" where the block is all of it.
  std::string KeyOf(const BlockRange& range) const;
  // Names of the optimizer's state for a tensor, in order.
  std::vector<std::string> SlotsOf(uint32_t tensor) const;
  // How that one is stored.
  StateType StateTypeOf(uint32_t tensor, size_t slot) const;
};

// The metadata of an entry: "crc32c=89abcdef bytes=512", and of weights how far the block
// is: "... version=500 updates=500 samples=0 parting=0 rate=1".
struct EntryMark {
  uint32_t crc32c = 0;
  uint64_t bytes = 0;  // the others, up to a multiple of 4, are zero
  uint64_t version = 0;
  uint64_t updates = 0;
  double samples = 0;  // in the sum
  double parting_samples = 0;
  float rate_factor = 1;

  // Their bytes may belong to one block.
  bool IsAsFarAs(const EntryMark& other) const;

  std::string ToString() const;
  // Nothing when it makes no sense.
  static std::optional<EntryMark> Parse(const std::string& text);
};

class PartWriter {
 public:
  struct Options {
    std::string folder = {};
    uint32_t shard = 0;
    std::shared_ptr<const CheckpointLayout> layout = {};
    std::vector<ShardBlock> blocks = {};  // of the shard, all that will be added
  };

  // `store` outlives it. Gone before Finish: nothing is kept.
  static absl::StatusOr<std::unique_ptr<PartWriter>> Create(BlobStore& store,
                                                            Options options);

  // InvalidArgument when two entries would have one name.
  absl::Status Add(uint32_t block, const BlockSnapshot& saved);
  // Both files are durable then. REQUIRES: all blocks were added.
  absl::StatusOr<std::vector<CheckpointFile>> Finish(const ShardSnapshot& rest);

 private:
  struct File {
    std::string name;
    std::unique_ptr<BlobWriter> writer;
    SafetensorsHead head;
    size_t head_bytes = 0;
    uint64_t data_bytes = 0;
  };

  PartWriter(BlobStore& store, Options options);
  absl::Status Open(File& file, const std::string& kind, size_t head_bytes);
  // Fills in where the entry lies, and its sum.
  absl::Status Put(File& file, const std::string& key, SafetensorsEntry entry,
                   ByteView bytes);
  absl::Status PutFloats(File& file, const std::string& key,
                         const std::vector<float>& values);
  absl::Status PutState(const std::string& key, uint32_t tensor,
                        const BlockSnapshot& saved);
  absl::StatusOr<CheckpointFile> Close(File& file);

  BlobStore& store_;
  const Options options_;
  std::map<uint32_t, BlockRange> ranges_;
  File weights_;
  File state_;
};

}  // namespace syncline
