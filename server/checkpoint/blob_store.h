// A BlobStore holds checkpoints as named byte sequences (blobs). '/' divides a name into
// parts.
//
// A blob exists as a whole or not at all. It becomes visible when Finish returns, and it
// is durable from then on.
//
// Thread safety: any thread may use a BlobStore; a BlobWriter, one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/base/buffer.h"

namespace syncline {

struct Blob {
  std::string name;
  uint64_t bytes = 0;
  absl::Time written = {};  // time of the last write
};

// Writes one blob. If the writer is destroyed before Finish, nothing of the blob is kept.
class BlobWriter {
 public:
  virtual ~BlobWriter() = default;
  virtual absl::Status Append(ByteView bytes) = 0;
  // Fills in the bytes that were left free at the front, and completes the blob. This is
  // the last call.
  virtual absl::Status Finish(ByteView head) = 0;
};

class BlobStore {
 public:
  virtual ~BlobStore() = default;

  // Returns all blobs whose names begin with `folder` and '/', in the order of their
  // names. Empty: all blobs.
  virtual absl::StatusOr<std::vector<Blob>> List(const std::string& folder) = 0;
  // Reads exactly out.size() bytes. Fails with DataLoss if the blob has fewer.
  virtual absl::Status Read(const std::string& name, uint64_t offset,
                            MutableByteView out) = 0;
  // Begins a blob, and leaves `head_bytes` free at its front. An existing blob of this
  // name is replaced at Finish.
  virtual absl::StatusOr<std::unique_ptr<BlobWriter>> Create(const std::string& name,
                                                             size_t head_bytes) = 0;
  // Makes an empty blob. Fails with AlreadyExists if the name exists. If several callers
  // try at once, on any hosts, exactly one succeeds.
  virtual absl::Status Claim(const std::string& name) = 0;
  // Returns OK also if there is no such blob.
  virtual absl::Status Delete(const std::string& name) = 0;
  // Returns a description for messages: "directory /data/checkpoints".
  virtual std::string Describe() const = 0;
};

}  // namespace syncline
