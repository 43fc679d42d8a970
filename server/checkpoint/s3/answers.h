// What S3 answers, in XML: lists of objects, numbers of uploads, errors.
//
// Thread safety: functions without state.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/checkpoint/blob_store.h"

namespace syncline {

struct S3ListPage {
  std::vector<Blob> objects;  // by their whole keys
  std::string next;           // token of the next page; empty: this is the last one
};

struct S3ErrorBody {
  std::string code;  // "NoSuchKey"; empty where the body is none of S3
  std::string message;
  std::string region;  // the right one, where it says so
};

// DataLoss where it is none.
absl::StatusOr<S3ListPage> ParseListPage(const std::string& xml);
absl::StatusOr<std::string> ParseUploadId(const std::string& xml);
S3ErrorBody ParseErrorBody(const std::string& xml);

// Asks to make an object of these parts: their ETags, from number 1 on.
std::string CompleteUploadXml(const std::vector<std::string>& etags);

}  // namespace syncline
