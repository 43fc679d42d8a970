// Reads and writes S3's XML: lists of objects, ids of uploads, and errors.
//
// Thread safety: pure functions.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/checkpoint/blob_store.h"

namespace syncline {

struct S3ListPage {
  std::vector<Blob> objects;  // named by their whole keys
  std::string next;           // token of the next page; empty: this is the last page
};

struct S3ErrorBody {
  std::string code;  // "NoSuchKey"; empty: the body is not an error of S3
  std::string message;
  std::string region;  // the bucket's region if the server names it
};

// Both fail with DataLoss if the text is not such an answer.
absl::StatusOr<S3ListPage> ParseListPage(const std::string& xml);
absl::StatusOr<std::string> ParseUploadId(const std::string& xml);
// Returns true if the answer says that the upload is complete. HTTP 200 alone does not:
// S3 sends it before it knows.
bool IsUploadComplete(const std::string& xml);
S3ErrorBody ParseErrorBody(const std::string& xml);

// Returns the request to make an object of these parts. `etags` are those of the parts,
// from number 1 on.
std::string CompleteUploadXml(const std::vector<std::string>& etags);

}  // namespace syncline
