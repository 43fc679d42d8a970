// A BlobStore in a bucket of Amazon S3, or of a server that speaks its protocol.
//
// A small blob is sent in one request. A larger one is sent in parts of equal size, and
// each part is repeated until it has arrived. The bucket shows the object only when it is
// complete.
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
  // Size of a part. The parts at the front of each blob stay in memory until Finish, and
  // so does the part that is being filled. S3 takes parts of at least 5 MiB, and at most
  // 10,000 of them.
  size_t part_bytes = size_t{8} << 20;
};

// Opens a bucket for reading and writing. It first tries whether the bucket can be listed
// and written, and whether its server supports conditional PUT; without that, two
// coordinators could claim the same run. For this test it makes an object and deletes it
// again.
absl::StatusOr<std::unique_ptr<BlobStore>> OpenS3Store(const S3Settings& settings,
                                                       const S3StoreOptions& options);

// Opens a bucket for commands that only read. The bucket must exist.
absl::StatusOr<std::unique_ptr<BlobStore>> OpenExistingS3Store(
    const S3Settings& settings, const S3StoreOptions& options);

}  // namespace syncline
