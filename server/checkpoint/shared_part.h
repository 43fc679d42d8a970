// Shared parts: weights of frozen tensors are written once, and the manifests of later
// checkpoints name the same file.
//
//   DIR/JOB/parts/
//     frozen-run1-step500-00003.safetensors          written with run1-step500
//     frozen-run1-step500-00003.safetensors.let-go   its time says when a checkpoint that
//                                                    named the part was last deleted
//
// A part is deleted when no manifest names it, and none has named it for an hour. A
// server that found a part in a manifest when it began to save can therefore rely on it
// until its own manifest is complete, even if the other checkpoint is deleted meanwhile:
// a save succeeds or fails within half an hour.
//
// Thread safety: free functions without state; the store's rules apply.
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
#include "absl/time/time.h"
#include "server/checkpoint/blob_store.h"
#include "server/checkpoint/manifest.h"
#include "server/checkpoint/part.h"

namespace syncline {

struct SharedPartQuery {
  std::string job = {};
  uint32_t run = 0;
  // The checkpoint that the run resumed from, if any.
  std::optional<CheckpointName> resumed_from = {};
  uint32_t shard = 0;
  std::set<std::string> keys = {};  // keys of the shard's frozen blocks
};

// Returns the shared part that has exactly these blocks. It looks in the last complete
// checkpoint of the run, or, if there is none, in the checkpoint that the run resumed
// from. Returns null if there is no such part or it cannot be read.
std::shared_ptr<const SharedPart> FindSharedPart(BlobStore& store,
                                                 const SharedPartQuery& query);

// Lists the blobs of the manifest's folder and, if the manifest names shared parts, those
// of the folder of shared parts.
absl::StatusOr<std::vector<Blob>> ListParts(BlobStore& store, const Manifest& manifest);

// Marks the shared parts of the manifest as let go now. Call it before the manifest is
// deleted. Succeeds also where nothing can be written (a full disk), as long as blobs can
// be deleted.
absl::Status ReleaseSharedParts(BlobStore& store, const Manifest& manifest);

// Deletes the shared parts that no manifest has named for an hour, and marks without a
// part. `now` is by the store's clock. Deletes nothing if some manifest cannot be read.
absl::Status SweepSharedParts(BlobStore& store, const std::string& job, absl::Time now);

}  // namespace syncline
