// A part of a checkpoint is what one shard holds, written as two safetensors files. The
// first has only weights, so any program that reads safetensors can use it. The second
// has everything else that the servers need. Weights of frozen tensors have a file of
// their own, which later checkpoints share (shared_part.h).
//
//   weights-00003.safetensors   fc1.weight                   [10, 128]  a whole tensor
//                               fc2.weight[0:1048576]        [1048576]  a piece of one
//   state-00003.safetensors     fc1.weight/exp_avg           optimizer state
//                               fc2.weight[0:1048576]//view  what workers hold
//                               fc2.weight[0:1048576]//sum   accumulated pushes
//                               fc1.weight//factors          tensors stepped as a whole
//                               /job_memory-00003            the same in all parts
//
// Pieces are blocks (comm/base/tiling.h), and these are the same on any number of
// servers. The metadata of an entry has the CRC-32C of its bytes. For weights it also
// says how far the block has been trained (EntryMark).
//
//   auto part = *PartWriter::Create(store, {.job = "night", .name = name, .shard = 3});
//   part->Add(block, snapshot);  // in any order
//   std::vector<CheckpointFile> files = *part->Finish(rest);
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
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
inline constexpr char kFrozenFile[] = "frozen";

// Suffixes of keys. They begin with "//" so that they differ from every optimizer's
// state: Adagrad, for example, has a state named "sum".
inline constexpr char kViewOf[] = "//view";
inline constexpr char kSumOf[] = "//sum";
inline constexpr char kFactorsOf[] = "//factors";

// The tensors of a job, and the keys under which their blocks and state are stored.
struct CheckpointLayout {
  std::vector<CheckpointTensor> tensors = {};
  std::shared_ptr<const TrainingPlan> plan = {};  // names the optimizer's state slots

  // Returns "fc2.weight[0:1048576]", or just "fc1.weight" if the range is the whole
  // tensor.
  std::string KeyOf(const BlockRange& range) const;
  // Returns the names of the optimizer's state slots for a tensor, in order. A frozen
  // tensor has none.
  std::vector<std::string> SlotsOf(uint32_t tensor) const;
  // Returns the type in which this slot is stored.
  StateType StateTypeOf(uint32_t tensor, size_t slot) const;
};

// The metadata of an entry, as text: "crc32c=89abcdef bytes=512". For weights it
// continues with the progress of the block: "... version=500 updates=500 samples=0
// parting=0 rate=1".
struct EntryMark {
  uint32_t crc32c = 0;
  uint64_t bytes = 0;  // without the zeros that pad the entry to a multiple of 4
  uint64_t version = 0;
  uint64_t updates = 0;
  double samples = 0;  // in the accumulated sum
  double parting_samples = 0;
  float rate_factor = 1;

  // Returns true if both marks have the same progress, so that their pieces can be joined
  // into one block.
  bool IsAsFarAs(const EntryMark& other) const;

  std::string ToString() const;
  // Returns nothing if the text is malformed.
  static std::optional<EntryMark> Parse(const std::string& text);
};

// A file of an earlier checkpoint that holds the frozen blocks of a shard.
struct SharedPart {
  CheckpointFile file = {};
  std::map<std::string, EntryMark> marks = {};  // by key
};

class PartWriter {
 public:
  struct Options {
    std::string job = {};
    CheckpointName name = {};
    uint32_t shard = 0;
    std::shared_ptr<const CheckpointLayout> layout = {};
    std::vector<ShardBlock> blocks = {};  // all blocks that will be added
    // An earlier file of the frozen blocks. Frozen blocks are then compared with it and
    // not written again. Null: they are written.
    std::shared_ptr<const SharedPart> frozen = {};

    // Returns the keys of the frozen blocks among `blocks`.
    std::set<std::string> FrozenKeys() const;
  };

  // `store` must outlive the writer. A writer that is destroyed before Finish leaves
  // nothing behind.
  static absl::StatusOr<std::unique_ptr<PartWriter>> Create(BlobStore& store,
                                                            Options options);

  // Writes a block and its state. Fails with InvalidArgument if two entries would have
  // the same name, and with DataLoss if a frozen block differs from the shared file.
  absl::Status Add(uint32_t block, const BlockSnapshot& saved);
  // Completes the files; they are durable when this returns. REQUIRES: all blocks were
  // added.
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
  absl::Status Open(File& file, const std::string& folder, size_t head_bytes);
  absl::Status AddWeights(const std::string& key, uint32_t block,
                          const BlockSnapshot& saved);
  // Appends the bytes, and adds the entry with its place and checksum to the head.
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
  std::set<std::string> keys_;  // of the blocks that were added
  File weights_;
  File state_;
  File frozen_;  // open only if there are frozen blocks to write
};

}  // namespace syncline
