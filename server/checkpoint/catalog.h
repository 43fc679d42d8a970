// Which checkpoints of a job there are, and how they come and go.
//
// Coordinators that share a store do not know of each other: each claims the runs of its
// jobs, so that no two write checkpoints of one name.
//
// Thread safety: functions of the store.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/checkpoint/blob_store.h"
#include "server/checkpoint/manifest.h"

namespace syncline {

struct CheckpointInfo {
  std::string folder = {};  // of the job
  CheckpointName name = {};
  bool is_complete = false;  // has a manifest
  uint64_t bytes = 0;
  absl::Time written = {};  // the last of its blobs
};

// In order of their names. `folder`: of one job (FolderOf); empty: of all.
absl::StatusOr<std::vector<CheckpointInfo>> ListCheckpoints(BlobStore& store,
                                                            const std::string& folder);

// NotFound says which there are. Errors name the checkpoint.
absl::StatusOr<Manifest> ReadManifest(BlobStore& store, const std::string& job,
                                      const CheckpointName& name);

// FailedPrecondition unless each file that the manifest names is there, of exactly that
// size: servers that write elsewhere say that all went well, too.
absl::Status CheckParts(BlobStore& store, const Manifest& manifest);

// The checkpoint is complete when it returns.
absl::Status PutManifest(BlobStore& store, const Manifest& manifest);

// The manifest first: one that is deleted in part is none.
absl::Status DeleteCheckpoint(BlobStore& store, const std::string& job,
                              const CheckpointName& name);

// After `latest` was completed: of its run and earlier ones, deletes all complete ones but
// the last `keep`, and what earlier ones left unfinished: those of other runs if they were
// last written an hour before it.
absl::Status Retain(BlobStore& store, const std::string& job,
                    const CheckpointName& latest, uint32_t keep);

// What a job begins with.
struct Beginning {
  uint32_t run = 1;
  bool resumes = false;
  Manifest from = {};  // if it resumes
};

// `resume`: "auto" (the latest, if there is one), "latest", "never", or a name. NotFound
// when that is not there.
absl::StatusOr<Beginning> FindBeginning(BlobStore& store, const std::string& job,
                                        const std::string& resume);

// The first run from `run` on that nobody has claimed: it is the caller's.
absl::StatusOr<uint32_t> ClaimRun(BlobStore& store, const std::string& job, uint32_t run);

}  // namespace syncline
