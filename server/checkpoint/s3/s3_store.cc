#include "server/checkpoint/s3/s3_store.h"

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "comm/base/failure.h"
#include "comm/base/status.h"
#include "server/checkpoint/s3/answers.h"
#include "server/checkpoint/s3/upload.h"

namespace syncline {
namespace {

// Limit for the requests at the start of the process, because a user waits for them.
constexpr absl::Duration kPatienceAtStart = absl::Seconds(20);

class S3Store final : public BlobStore {
 public:
  S3Store(S3Settings settings, const S3StoreOptions& options)
      : options_(options), client_(std::move(settings), options.client) {}

  absl::StatusOr<std::vector<Blob>> List(const std::string& folder) override {
    S3Call call = {
        .query = {
            {"list-type", "2"},
            {"encoding-type", "url"},
            {"prefix", folder.empty() ? KeyOf("") : absl::StrCat(KeyOf(folder), "/")}}};
    const size_t root = KeyOf("").size();
    std::vector<Blob> blobs;
    for (;;) {
      SYNCLINE_ASSIGN_OR_RETURN(const S3Answer answer, client_.Do(call));
      auto page = ParseListPage(answer.body);
      if (!page.ok()) return About(page.status());
      for (Blob& blob : page->objects) {
        // Some programs make objects that stand for folders. They are not blobs.
        if (blob.name.size() <= root || absl::EndsWith(blob.name, "/")) continue;
        blob.name.erase(0, root);
        blobs.push_back(std::move(blob));
      }
      if (page->next.empty()) break;
      if (page->next == std::exchange(call.query["continuation-token"], page->next)) {
        return About(absl::DataLossError("the listing of the bucket does not end"));
      }
    }
    std::ranges::sort(blobs, {}, &Blob::name);
    return blobs;
  }

  absl::Status Read(const std::string& name, uint64_t offset,
                    MutableByteView out) override {
    S3Call call = {.method = out.empty() ? "HEAD" : "GET",
                   .key = KeyOf(name),
                   .out = out,
                   .offset = offset,
                   .expected = {416}};
    if (!out.empty()) {
      call.headers["range"] =
          absl::StrCat("bytes=", offset, "-", offset + out.size() - 1);
    }
    SYNCLINE_ASSIGN_OR_RETURN(const S3Answer answer, client_.Do(call));
    if (answer.status != 416 && answer.received == out.size()) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat(UrlOf(name), " ends at byte ",
                                            offset + answer.received,
                                            " or before: it was cut off"));
  }

  absl::StatusOr<std::unique_ptr<BlobWriter>> Create(const std::string& name,
                                                     size_t head_bytes) override {
    return std::make_unique<S3Upload>(
        client_, S3Upload::Options{.key = KeyOf(name),
                                   .head_bytes = head_bytes,
                                   .part_bytes = options_.part_bytes});
  }

  absl::Status Claim(const std::string& name) override {
    SYNCLINE_ASSIGN_OR_RETURN(const bool is_mine, PutIfAbsent(name, NewS3Mark()));
    if (is_mine) return absl::OkStatus();
    return absl::AlreadyExistsError(absl::StrCat(UrlOf(name), " exists already"));
  }

  absl::Status Delete(const std::string& name) override {
    const S3Call call = {.method = "DELETE", .key = KeyOf(name), .expected = {404}};
    SYNCLINE_ASSIGN_OR_RETURN(const S3Answer answer, client_.Do(call));
    if (answer.status != 404) return absl::OkStatus();
    const S3ErrorBody error = ParseErrorBody(answer.body);
    return error.code == "NoSuchBucket" ? client_.ErrorOf(call, answer)
                                        : absl::OkStatus();
  }

  std::string Describe() const override { return client_.settings().Describe(); }

  // Checks at the start that the bucket can be listed.
  absl::Status Look() {
    const S3Call call = {
        .query = {{"list-type", "2"}, {"max-keys", "1"}, {"prefix", KeyOf("")}}};
    SYNCLINE_ASSIGN_OR_RETURN(const S3Answer answer, client_.Do(call));
    return About(ParseListPage(answer.body).status());
  }

  // Checks at the start that the server supports conditional PUT.
  absl::Status TryClaims() {
    const std::string mark = NewS3Mark();
    const std::string name = absl::StrCat(".syncline-tried-", mark);
    SYNCLINE_RETURN_IF_ERROR(PutIfAbsent(name, mark).status());
    // Another client would write the same object with another mark.
    const auto second = PutIfAbsent(name, NewS3Mark());
    const absl::Status gone = Delete(name);
    SYNCLINE_RETURN_IF_ERROR(second.status());
    if (*second) {
      return absl::FailedPreconditionError(
          absl::StrCat(Describe(),
                       " overwrites an object in spite of If-None-Match: *, so two "
                       "coordinators could write one checkpoint; use a server that "
                       "supports conditional writes, or a newer version of this one"));
    }
    return gone;
  }

 private:
  std::string KeyOf(const std::string& name) const {
    const std::string& prefix = client_.settings().prefix;
    return prefix.empty() ? name : absl::StrCat(prefix, "/", name);
  }
  std::string UrlOf(const std::string& name) const {
    return absl::StrCat("s3://", client_.settings().bucket, "/", KeyOf(name));
  }
  absl::Status About(const absl::Status& status) const {
    if (status.ok()) return status;
    return {status.code(), absl::StrCat(Describe(), ": ", status.message())};
  }

  // Returns false if the object exists and another client made it.
  absl::StatusOr<bool> PutIfAbsent(const std::string& name, const std::string& mark) {
    const S3Call put = {.method = "PUT",
                        .key = KeyOf(name),
                        .headers = {{"if-none-match", "*"}, {kS3MarkHeader, mark}},
                        .expected = {412, 501}};
    SYNCLINE_ASSIGN_OR_RETURN(const S3Answer answer, client_.Do(put));
    if (answer.status == 501) {
      return absl::FailedPreconditionError(absl::StrCat(
          std::string(client_.ErrorOf(put, answer).message()),
          ": it does not support If-None-Match: *, without which two coordinators could "
          "write one checkpoint; use a server that supports conditional writes"));
    }
    if (answer.status != 412) return true;
    if (answer.attempts == 1) return false;
    // An earlier attempt of this call, whose answer was lost, may have made it.
    return HasS3Mark(client_, put.key, mark);
  }

  const S3StoreOptions options_;
  S3Client client_;
};

// Marks errors that do not pass by themselves as the operator's to mend
// (Failure::kUsage).
absl::Status AtStart(const absl::Status& status) {
  if (status.ok() || FailureOf(status) != Failure::kNone) return status;
  return WithFailure(
      status, absl::IsUnavailable(status) ? Failure::kUnreachable : Failure::kUsage);
}

S3StoreOptions ForStart(S3StoreOptions options) {
  options.client.patience = std::min(options.client.patience, kPatienceAtStart);
  options.client.attempt = std::min(options.client.attempt, kPatienceAtStart / 2);
  options.client.connect = std::min(options.client.connect, kPatienceAtStart / 4);
  return options;
}

}  // namespace

absl::StatusOr<std::unique_ptr<BlobStore>> OpenS3Store(const S3Settings& settings,
                                                       const S3StoreOptions& options) {
  S3Store first(settings, ForStart(options));
  SYNCLINE_RETURN_IF_ERROR(AtStart(first.Look()));
  SYNCLINE_RETURN_IF_ERROR(AtStart(first.TryClaims()));
  return std::make_unique<S3Store>(settings, options);
}

absl::StatusOr<std::unique_ptr<BlobStore>> OpenExistingS3Store(
    const S3Settings& settings, const S3StoreOptions& options) {
  S3Store first(settings, ForStart(options));
  SYNCLINE_RETURN_IF_ERROR(AtStart(first.Look()));
  return std::make_unique<S3Store>(settings, options);
}

}  // namespace syncline
