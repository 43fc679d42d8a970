// Reads a checkpoint, of any number of servers, for any number of servers: each takes the
// blocks that it has, however the writer had cut tensors into blocks: names of entries say
// which elements they hold. All that is read is checked first; what is wrong is an error
// that names the checkpoint and the place.
//
//   auto reader = *CheckpointReader::Open(store, job, name);
//   for (const ShardBlock& block : blocks) shard->Load(*reader->Read(block, layout));
//   shard->Load(*reader->ReadRest(layout));
//
// Thread safety: const methods may be called by any threads, if the store's may.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/checkpoint/blob_store.h"
#include "server/checkpoint/manifest.h"
#include "server/checkpoint/part.h"
#include "server/checkpoint/safetensors.h"

namespace syncline {

class CheckpointReader {
 public:
  // Reads the manifest and the heads of all files. NotFound when there is none of that
  // name, DataLoss when something is damaged, FailedPrecondition for a newer format.
  static absl::StatusOr<std::unique_ptr<CheckpointReader>> Open(
      BlobStore& store, const std::string& job, const CheckpointName& name);

  const Manifest& manifest() const { return manifest_; }

  // FailedPrecondition names the first difference of the job's tensors.
  absl::Status CheckTensors(const std::vector<CheckpointTensor>& tensors) const;

  // One block with its state, for Shard::Load.
  absl::StatusOr<ShardSnapshot> Read(const ShardBlock& block,
                                     const CheckpointLayout& layout) const;
  // What belongs to tensors and the job.
  absl::StatusOr<ShardSnapshot> ReadRest(const CheckpointLayout& layout) const;

  // Reads everything.
  absl::Status Verify() const;
  // All weights as one safetensors file, each tensor whole.
  absl::Status Export(BlobStore& store, const std::string& file) const;

 private:
  struct Entry {
    size_t file = 0;
    SafetensorsEntry where = {};
    EntryMark mark = {};
  };

  // Of a tensor, as it was cut when it was written.
  struct Piece {
    uint64_t first = 0;
    uint64_t elements = 0;
    std::string key = {};
  };
  // What a block takes of a piece.
  struct Slice {
    uint64_t first = 0;  // in the piece
    uint64_t elements = 0;
  };

  CheckpointReader(BlobStore& store, Manifest manifest)
      : store_(store), manifest_(std::move(manifest)) {}
  absl::Status ReadHeads();
  absl::Status ReadHead(size_t file, uint64_t bytes);
  absl::Status ReadEntries(size_t file, const std::string& head);
  absl::Status FindPieces();
  absl::Status CheckPiece(const CheckpointTensor& tensor, const Piece& piece) const;
  absl::Status CheckPieces(const CheckpointTensor& tensor,
                           std::vector<Piece>& pieces) const;
  absl::Status Join(const Piece& piece, const Slice& slice, BlockSnapshot& saved) const;
  absl::Status JoinState(const Piece& piece, const Slice& slice,
                         const CheckpointLayout& layout, const ShardBlock& block,
                         BlockSnapshot& saved) const;
  absl::Status About(const absl::Status& status) const;
  using Entries = std::map<std::string, Entry>;  // by key
  absl::StatusOr<std::vector<std::byte>> ReadBytes(const std::string& key,
                                                   const Entry& entry) const;
  // Empty when there is none.
  absl::StatusOr<std::vector<float>> ReadFloats(const Entries& of,
                                                const std::string& key) const;

  BlobStore& store_;
  const Manifest manifest_;
  Entries weights_;
  Entries state_;
  std::vector<std::vector<Piece>> pieces_;  // of each tensor, in order
};

}  // namespace syncline
