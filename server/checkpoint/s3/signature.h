// AWS Signature Version 4: proves with each request who sends it, and that nothing of it was
// changed on the way, the body included.
//
// https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html
//
// Thread safety: functions without state.
#pragma once

#include <map>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "comm/base/buffer.h"
#include "server/checkpoint/s3/settings.h"

namespace syncline {

// As S3 wants names in requests: each byte as %XX but letters, digits and "-._~".
std::string UriEncode(absl::string_view text);
// The same, but for '/'.
std::string UriEncodePath(absl::string_view path);

// "a=1&b=", encoded and in order of the encoded names, as it is sent and signed.
std::string CanonicalQuery(const std::map<std::string, std::string>& query);

// 64 hexadecimal digits.
std::string Sha256Hex(ByteView bytes);

// "20130524T000000Z", the header x-amz-date.
std::string AmzDate(absl::Time time);

struct SignedRequest {
  std::string method;
  std::string path;        // encoded, as it is sent
  std::string query = {};  // canonical
  std::map<std::string, std::string> headers =
      {};  // all that are signed; names in lower case
  std::string payload_sha256 = {};
};

struct SigningScope {
  std::string region;
  std::string service = "s3";
};

// The header Authorization. `request` has the header x-amz-date of `time`.
std::string Authorization(const SignedRequest& request, const SigningScope& scope,
                          const S3Credentials& credentials, absl::Time time);

}  // namespace syncline
