// The catalog of a store: lists the checkpoints of a job, completes and deletes them, and
// finds the one that a job resumes from.
//
// Several coordinators may share a store without knowing of each other. Each claims the
// runs of its jobs, so that no two of them write checkpoints of the same name.
//
// Thread safety: free functions without state; each may be called from any thread from
// which the store may be used.
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
  std::string folder = {};  // the job's folder, FolderOf(job)
  CheckpointName name = {};
  bool is_complete = false;  // has a manifest
  uint64_t bytes = 0;
  absl::Time written = {};  // when its last blob was written
};

// Returns all checkpoints in the order of their names, the incomplete ones included.
// `folder`: the folder of one job (FolderOf). Empty: all jobs.
absl::StatusOr<std::vector<CheckpointInfo>> ListCheckpoints(BlobStore& store,
                                                            const std::string& folder);

// Reads and checks a manifest. Fails with NotFound, and says which checkpoints exist, if
// there is none of this name. All errors name the checkpoint.
absl::StatusOr<Manifest> ReadManifest(BlobStore& store, const std::string& job,
                                      const CheckpointName& name);

// Fails with FailedPrecondition unless each file of the manifest exists and has exactly
// the size that the manifest says. A server that writes to a different directory reports
// success as well; this check finds that.
absl::Status CheckParts(BlobStore& store, const Manifest& manifest);

// Writes the manifest durably. The checkpoint is complete when this returns OK.
absl::Status PutManifest(BlobStore& store, const Manifest& manifest);

// Deletes the manifest first, so that a checkpoint that is only partly deleted does not
// count as one.
absl::Status DeleteCheckpoint(BlobStore& store, const std::string& job,
                              const CheckpointName& name);

// Deletes old checkpoints of the job. Call it after `latest` was completed. Among the
// checkpoints of the same run and of earlier runs it deletes:
//   - complete ones, except the last `keep`;
//   - incomplete ones older than `latest`. Those of other runs are deleted only if they
//     were last written at least an hour before `latest`.
// Then it sweeps shared parts (SweepSharedParts).
absl::Status Retain(BlobStore& store, const std::string& job,
                    const CheckpointName& latest, uint32_t keep);

// The run that a job starts, and the checkpoint that it resumes from.
struct Beginning {
  uint32_t run = 1;
  bool resumes = false;
  Manifest from = {};  // set if `resumes`
};

// Decides where a job starts. `resume` is "auto" (the latest checkpoint, if there is
// one), "latest", "never", or the name of a checkpoint. Fails with NotFound if "latest"
// or the name does not exist.
absl::StatusOr<Beginning> FindBeginning(BlobStore& store, const std::string& job,
                                        const std::string& resume);

// Claims the first run, from `run` on, that no coordinator has claimed yet, and returns
// it.
absl::StatusOr<uint32_t> ClaimRun(BlobStore& store, const std::string& job, uint32_t run);

}  // namespace syncline
