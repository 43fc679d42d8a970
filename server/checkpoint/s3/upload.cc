#include "server/checkpoint/s3/upload.h"

#include <openssl/rand.h>

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "comm/base/check.h"
#include "comm/base/printable.h"
#include "comm/base/status.h"
#include "server/checkpoint/s3/answers.h"

namespace syncline {
namespace {

constexpr size_t kMaxParts = 10000;

// A process that ends must not wait for a server that is gone.
constexpr absl::Duration kPatienceToAbort = absl::Seconds(3);

// Moves bytes from the front of `bytes` to `to`, until that has `size` bytes.
void Fill(std::vector<std::byte>& to, size_t size, ByteView& bytes) {
  const size_t taken = std::min(size - to.size(), bytes.size());
  to.insert(to.end(), bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(taken));
  bytes = bytes.subspan(taken);
}

size_t RoundedUp(size_t bytes, size_t part) { return (bytes + part - 1) / part * part; }

}  // namespace

std::string NewS3Mark() {
  std::array<unsigned char, 16> bytes = {};
  SYNCLINE_CHECK(RAND_bytes(bytes.data(), bytes.size()) == 1);
  return absl::BytesToHexString(
      {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

absl::StatusOr<bool> HasS3Mark(S3Client& client, const std::string& key,
                               const std::string& mark) {
  SYNCLINE_ASSIGN_OR_RETURN(const S3Answer answer,
                            client.Do({.method = "HEAD", .key = key, .expected = {404}}));
  return answer.status == 200 && answer.Header(kS3MarkHeader) == mark;
}

S3Upload::S3Upload(S3Client& client, Options options)
    : client_(client),
      options_(std::move(options)),
      front_bytes_(
          RoundedUp(std::max<size_t>(options_.head_bytes, 1), options_.part_bytes)) {
  front_.reserve(front_bytes_);
  front_.resize(options_.head_bytes);
}

S3Upload::~S3Upload() {
  if (!is_finished_ && !upload_.empty()) Abort();
}

absl::Status S3Upload::Append(ByteView bytes) {
  while (!bytes.empty()) {
    if (front_.size() < front_bytes_) {
      Fill(front_, front_bytes_, bytes);
      continue;
    }
    Fill(filling_, options_.part_bytes, bytes);
    if (filling_.size() < options_.part_bytes) break;
    if (upload_.empty()) SYNCLINE_RETURN_IF_ERROR(Begin());
    SYNCLINE_RETURN_IF_ERROR(SendPart(etags_.size() + 1, filling_));
    filling_.clear();
  }
  return absl::OkStatus();
}

absl::Status S3Upload::Finish(ByteView head) {
  SYNCLINE_CHECK(head.size() == options_.head_bytes);
  std::ranges::copy(head, front_.begin());
  if (upload_.empty() && filling_.empty() && front_.size() <= options_.part_bytes) {
    return PutAtOnce();
  }
  if (upload_.empty()) SYNCLINE_RETURN_IF_ERROR(Begin());
  if (!filling_.empty()) {
    SYNCLINE_RETURN_IF_ERROR(SendPart(etags_.size() + 1, filling_));
  }
  const ByteView front = front_;
  for (size_t at = 0; at < front.size(); at += options_.part_bytes) {
    const size_t size = std::min(options_.part_bytes, front.size() - at);
    SYNCLINE_RETURN_IF_ERROR(
        SendPart(at / options_.part_bytes + 1, front.subspan(at, size)));
  }
  return Complete();
}

absl::Status S3Upload::Begin() {
  const S3Call call = {.method = "POST",
                       .key = options_.key,
                       .query = {{"uploads", ""}},
                       .headers = {{kS3MarkHeader, mark_}}};
  SYNCLINE_ASSIGN_OR_RETURN(const S3Answer answer, client_.Do(call));
  SYNCLINE_ASSIGN_OR_RETURN(upload_, ParseUploadId(answer.body));
  etags_.resize(front_bytes_ / options_.part_bytes);
  filling_.reserve(options_.part_bytes);
  return absl::OkStatus();
}

absl::Status S3Upload::SendPart(size_t number, ByteView bytes) {
  if (number > kMaxParts) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "s3://", client_.settings().bucket, "/", options_.key, " has more than ",
        kMaxParts, " parts of ", options_.part_bytes >> 20,
        " MiB, which S3 does not accept; give the job more servers, or "
        "--engine-threads"));
  }
  const S3Call call = {
      .method = "PUT",
      .key = options_.key,
      .query = {{"partNumber", absl::StrCat(number)}, {"uploadId", upload_}},
      .body = bytes};
  SYNCLINE_ASSIGN_OR_RETURN(const S3Answer answer, client_.Do(call));
  if (etags_.size() < number) etags_.resize(number);
  etags_[number - 1] = answer.Header("etag");
  if (!etags_[number - 1].empty()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("s3://", client_.settings().bucket, "/",
                                          options_.key, ": part ", number,
                                          " was accepted without an ETag"));
}

absl::Status S3Upload::PutAtOnce() {
  const S3Call call = {.method = "PUT",
                       .key = options_.key,
                       .headers = {{kS3MarkHeader, mark_}},
                       .body = front_};
  SYNCLINE_RETURN_IF_ERROR(client_.Do(call).status());
  is_finished_ = true;
  return absl::OkStatus();
}

absl::Status S3Upload::Complete() {
  const std::string xml = CompleteUploadXml(etags_);
  const S3Call call = {.method = "POST",
                       .key = options_.key,
                       .query = {{"uploadId", upload_}},
                       .body = std::as_bytes(std::span(xml)),
                       .expected = {404}};
  SYNCLINE_ASSIGN_OR_RETURN(S3Answer answer, client_.Do(call));
  is_finished_ = answer.status != 404 && IsUploadComplete(answer.body);
  if (is_finished_) return absl::OkStatus();
  // An earlier attempt, whose answer was lost, may have completed the upload; or this one
  // did.
  SYNCLINE_ASSIGN_OR_RETURN(is_finished_, HasS3Mark(client_, options_.key, mark_));
  if (is_finished_) return absl::OkStatus();
  if (answer.status == 404) return client_.ErrorOf(call, answer);
  return absl::DataLossError(absl::StrCat(
      "s3://", client_.settings().bucket, "/", options_.key, ": HTTP ", answer.status,
      " in answer to the end of its upload, with '", Printable(answer.body),
      "', but the object is not there; check the endpoint, and any proxy on the way"));
}

// Best effort: parts that stay cost space until a rule of the bucket deletes them.
void S3Upload::Abort() {
  (void)client_.Do({.method = "DELETE",
                    .key = options_.key,
                    .query = {{"uploadId", upload_}},
                    .expected = {404},
                    .patience = kPatienceToAbort});
}

}  // namespace syncline
