// Opens the place that --checkpoint-dir names: a directory, or s3://BUCKET/PREFIX.
// Settings of a bucket come from the environment (server/checkpoint/s3/settings.h).
//
// Thread safety: functions without state.
#pragma once

#include <functional>
#include <memory>
#include <stop_token>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/checkpoint/blob_store.h"
#include "server/service/awaited_store.h"

namespace syncline {

// Opens the store for writing, and creates a missing directory. Lists a bucket and writes
// to it once, so that errors show at the start.
absl::StatusOr<std::unique_ptr<BlobStore>> OpenCheckpointStore(const std::string& where);

// For services: opens a bucket that may not answer at present, and asks it until it does.
// REQUIRES: IsS3Location(where).
struct AwaitedBucket {
  // Requested when the process ends: requests to a silent bucket are then cut short.
  std::stop_token hurry = {};
  // As in AwaitedStoreOptions; the first argument of on_change is the bucket's name.
  absl::Duration patience = {};
  std::function<void(const std::string&, const absl::Status&)> on_change = {};
};
absl::StatusOr<std::unique_ptr<AwaitedStore>> AwaitCheckpointStore(
    const std::string& where, const AwaitedBucket& about);

// Opens the store for commands that only read.
absl::StatusOr<std::unique_ptr<BlobStore>> OpenExistingCheckpointStore(
    const std::string& where);

// Fails with Failure::kUsage when `where` is a malformed bucket name, or credentials are
// missing. Uses no network.
absl::Status CheckCheckpointStore(const std::string& where);

}  // namespace syncline
