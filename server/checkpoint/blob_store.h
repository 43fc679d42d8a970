// Where checkpoints lie: named runs of bytes. A name has parts, divided by '/'.
//
// A blob is there as a whole or not at all: it shows when Finish has returned, and is
// durable then.
//
// Thread safety: a BlobStore may be used by any thread; a BlobWriter by one at a time.
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
  absl::Time written = {};  // last
};

// Gone before Finish: nothing of it is kept.
class BlobWriter {
 public:
  virtual ~BlobWriter() = default;
  virtual absl::Status Append(ByteView bytes) = 0;
  // Fills in the bytes that were left free at the front. Last.
  virtual absl::Status Finish(ByteView head) = 0;
};

class BlobStore {
 public:
  virtual ~BlobStore() = default;

  // All whose names begin with `folder` and '/', in order of their names; empty: all.
  virtual absl::StatusOr<std::vector<Blob>> List(const std::string& folder) = 0;
  // Exactly out.size() bytes; DataLoss when there are fewer.
  virtual absl::Status Read(const std::string& name, uint64_t offset,
                            MutableByteView out) = 0;
  // Leaves `head_bytes` free at the front. One that exists is replaced at Finish.
  virtual absl::StatusOr<std::unique_ptr<BlobWriter>> Create(const std::string& name,
                                                             size_t head_bytes) = 0;
  // An empty blob. AlreadyExists when there is one of that name: of all who try at once,
  // whatever the host, one makes it.
  virtual absl::Status Claim(const std::string& name) = 0;
  // OK when there is none of that name.
  virtual absl::Status Delete(const std::string& name) = 0;
  // For people: "directory /data/checkpoints".
  virtual std::string Describe() const = 0;
};

}  // namespace syncline
