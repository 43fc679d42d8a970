// AWS Signature Version 4 proves who sent a request, and that nothing in it was changed
// on the way, the body included.
//
// https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html
//
// Thread safety: pure functions.
#pragma once

#include <map>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "comm/base/buffer.h"
#include "server/checkpoint/s3/settings.h"

namespace syncline {

// Encodes a name for a request: each byte as %XX, except letters, digits and "-._~".
std::string UriEncode(absl::string_view text);
// Does the same but keeps '/'.
std::string UriEncodePath(absl::string_view path);

// Returns the query as it is sent and signed: "a=1&b=", encoded and sorted by encoded
// name.
std::string CanonicalQuery(const std::map<std::string, std::string>& query);

// Returns the SHA-256 hash as 64 hexadecimal digits.
std::string Sha256Hex(ByteView bytes);

// Returns the value of the header x-amz-date: "20130524T000000Z".
std::string AmzDate(absl::Time time);

struct SignedRequest {
  std::string method;
  std::string path;        // percent-encoded, as it is sent
  std::string query = {};  // from CanonicalQuery
  // All headers that are signed, with names in lower case.
  std::map<std::string, std::string> headers = {};
  std::string payload_sha256 = {};
};

struct SigningScope {
  std::string region;
  std::string service = "s3";
};

// Returns the value of the header Authorization. REQUIRES: `request` has the header
// x-amz-date with AmzDate(time).
std::string Authorization(const SignedRequest& request, const SigningScope& scope,
                          const S3Credentials& credentials, absl::Time time);

}  // namespace syncline
