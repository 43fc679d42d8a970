// Names of files that several checkpoints of a job share. They lie in "parts/" in the
// job's folder, beside the checkpoints (shared_part.h), and manifests name them
// "parts/...".
//
// Thread safety: pure functions.
#pragma once

#include <string>

#include "server/checkpoint/manifest.h"

namespace syncline {

inline constexpr char kSharedFolder[] = "parts";
// The format of manifests that name shared parts, and the newest format that this program
// reads. All other manifests have format kCheckpointFormat, which older programs can read
// too.
inline constexpr int kSharingFormat = 2;

bool IsShared(const CheckpointFile& file);
bool HasShared(const Manifest& manifest);
// Returns the name of the file's blob in the store.
std::string BlobOf(const Manifest& manifest, const CheckpointFile& file);

}  // namespace syncline
