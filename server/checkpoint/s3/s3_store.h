// Blobs as objects of a bucket: of Amazon S3, or of a server that speaks its protocol.
//
// What is small is put at once; the rest in parts of one size, each sent again until it is
// there. The bucket shows an object when all of it is there.
//
//   SYNCLINE_ASSIGN_OR_RETURN(const S3Settings settings,
//                             FindS3Settings("s3://models/night", environment));
//   SYNCLINE_ASSIGN_OR_RETURN(const auto store, OpenS3Store(settings, {}));
#pragma once

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "server/checkpoint/blob_store.h"
#include "server/checkpoint/s3/client.h"
#include "server/checkpoint/s3/settings.h"

namespace syncline {

struct S3StoreOptions {
  S3ClientOptions client = {};
  // The first ones stay in memory until Finish, as does the one that is being filled.
  // S3 takes parts of at least 5 MiB, at most 10,000 of them.
  size_t part_bytes = size_t{8} << 20;
};

// Tries once whether the bucket can be listed and written, and whether its server knows a
// conditional PUT, without which two coordinators could claim the same run. It makes an
// object of its own for that, and deletes it.
absl::StatusOr<std::unique_ptr<BlobStore>> OpenS3Store(const S3Settings& settings,
                                                       const S3StoreOptions& options);

// For commands that only read: the bucket must be there.
absl::StatusOr<std::unique_ptr<BlobStore>> OpenExistingS3Store(
    const S3Settings& settings, const S3StoreOptions& options);

}  // namespace syncline
