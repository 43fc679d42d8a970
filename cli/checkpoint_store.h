// Where checkpoints lie, as --checkpoint-dir says it: a directory, or s3://BUCKET/PREFIX.
// What belongs to a bucket comes from the environment (server/checkpoint/s3/settings.h).
//
// Thread safety: functions without state.
#pragma once

#include <memory>
#include <stop_token>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/checkpoint/blob_store.h"

namespace syncline {

// For those who write: makes a directory that is missing. A bucket is listed and written to
// once, so that what is wrong with it shows at the start. Once `hurry` is requested, as the
// process is to end, what a bucket refuses is not tried again.
absl::StatusOr<std::unique_ptr<BlobStore>> OpenCheckpointStore(
    const std::string& where, std::stop_token hurry = {});

// For commands that look at what is there.
absl::StatusOr<std::unique_ptr<BlobStore>> OpenExistingCheckpointStore(
    const std::string& where);

// Failure::kUsage where `where` means a bucket and says it wrong, or where its credentials
// are missing. Asks nobody.
absl::Status CheckCheckpointStore(const std::string& where);

}  // namespace syncline
