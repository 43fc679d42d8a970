// One object on its way to a bucket.
//
// The bytes at its front come last, so the parts that hold them wait in memory until then;
// all others leave as soon as they are full.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/checkpoint/blob_store.h"
#include "server/checkpoint/s3/client.h"

namespace syncline {

// Metadata of an object that says which call made it: the answer may be lost.
inline constexpr char kS3MarkHeader[] = "x-amz-meta-syncline-mark";

std::string NewS3Mark();
// False when there is no such object, too.
absl::StatusOr<bool> HasS3Mark(S3Client& client, const std::string& key,
                               const std::string& mark);

class S3Upload final : public BlobWriter {
 public:
  struct Options {
    std::string key = {};
    size_t head_bytes = 0;
    size_t part_bytes = 0;
  };

  // `client` outlives it.
  S3Upload(S3Client& client, Options options);
  ~S3Upload() override;  // gives it up, unless it is finished

  absl::Status Append(ByteView bytes) override;
  absl::Status Finish(ByteView head) override;

 private:
  absl::Status Begin();
  absl::Status SendPart(size_t number, ByteView bytes);
  absl::Status PutAtOnce();
  absl::Status Complete();
  void Abort();

  S3Client& client_;
  const Options options_;
  const std::string mark_ = NewS3Mark();
  const size_t front_bytes_;        // whole parts that hold the head
  std::vector<std::byte> front_;    // until Finish
  std::vector<std::byte> filling_;  // the part after those that were sent
  std::vector<std::string> etags_;  // by number of the part; empty: not sent yet
  std::string upload_;              // its id; empty: none has begun
  bool is_finished_ = false;
};

}  // namespace syncline
