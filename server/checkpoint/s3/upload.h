// Uploads one object to a bucket.
//
// The bytes at the front of the object come last (BlobWriter::Finish). The parts that
// hold them therefore wait in memory until then; all other parts are sent as soon as they
// are full.
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

// A header of the object's metadata. Its value tells which call made the object, in case
// the answer to that call is lost.
inline constexpr char kS3MarkHeader[] = "x-amz-meta-syncline-mark";

std::string NewS3Mark();
// Returns false also if there is no such object.
absl::StatusOr<bool> HasS3Mark(S3Client& client, const std::string& key,
                               const std::string& mark);

class S3Upload final : public BlobWriter {
 public:
  struct Options {
    std::string key = {};
    size_t head_bytes = 0;
    size_t part_bytes = 0;
  };

  // `client` must outlive the upload.
  S3Upload(S3Client& client, Options options);
  ~S3Upload() override;  // aborts the upload unless it is finished

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
  const size_t front_bytes_;        // size of the parts that hold the head
  std::vector<std::byte> front_;    // kept until Finish
  std::vector<std::byte> filling_;  // the part that is being filled
  std::vector<std::string> etags_;  // by part, from number 1 on; empty: not sent yet
  std::string upload_;              // id of the upload; empty: not begun
  bool is_finished_ = false;
};

}  // namespace syncline
