// Reads a checkpoint. The number of servers may differ from the number that wrote it:
// each server reads the blocks that it owns, even if the writer cut tensors into
// different blocks. The name of each entry says which elements it holds. Everything is
// checked before it is used. Errors name the checkpoint and the place that is damaged.
//
//   auto reader = *CheckpointReader::Open(store, job, name);
//   for (const ShardBlock& block : blocks) shard->Load(*reader->Read(block, layout));
//   shard->Load(*reader->ReadRest(layout));
//
// Thread safety: any threads may call the const methods at the same time if the store
// allows it.
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
  // Reads the manifest and the heads of all files. Fails with NotFound if there is no
  // checkpoint of this name, with DataLoss if something is damaged, and with
  // FailedPrecondition if its format is newer than this program.
  static absl::StatusOr<std::unique_ptr<CheckpointReader>> Open(
      BlobStore& store, const std::string& job, const CheckpointName& name);

  const Manifest& manifest() const { return manifest_; }

  // Fails with FailedPrecondition, and names the first difference, if the job's tensors
  // differ from those of the checkpoint.
  absl::Status CheckTensors(const std::vector<CheckpointTensor>& tensors) const;

  // Reads one block with its state, in the form that Shard::Load takes.
  absl::StatusOr<ShardSnapshot> Read(const ShardBlock& block,
                                     const CheckpointLayout& layout) const;
  // Reads the state that belongs to whole tensors and to the job.
  absl::StatusOr<ShardSnapshot> ReadRest(const CheckpointLayout& layout) const;

  // Reads every entry and checks its checksum.
  absl::Status Verify() const;
  // Writes all weights as one safetensors file in which each tensor is whole.
  absl::Status Export(BlobStore& store, const std::string& file) const;

 private:
  struct Entry {
    size_t file = 0;
    SafetensorsEntry where = {};
    EntryMark mark = {};
  };

  // A piece of a tensor, as the writer cut it.
  struct Piece {
    uint64_t first = 0;
    uint64_t elements = 0;
    std::string key = {};
  };
  // The elements of a piece that belong to a block.
  struct Slice {
    uint64_t first = 0;  // index in the piece
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
  // Returns an empty vector if there is no such entry.
  absl::StatusOr<std::vector<float>> ReadFloats(const Entries& of,
                                                const std::string& key) const;

  BlobStore& store_;
  const Manifest manifest_;
  Entries weights_;
  Entries state_;
  // Pieces of each tensor, sorted by their first element.
  std::vector<std::vector<Piece>> pieces_;
};

}  // namespace syncline
