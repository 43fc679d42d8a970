// Location of a bucket and the credentials for it: from "s3://bucket/prefix", and from
// the environment variables that other S3 programs read too.
//
//   AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN
//   AWS_REGION, AWS_DEFAULT_REGION      default: us-east-1
//   AWS_ENDPOINT_URL_S3,
//   AWS_ENDPOINT_URL                    for MinIO and others; default: Amazon's
//   AWS_CA_BUNDLE                       trusted certificates; default: the system's
#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace syncline {

struct S3Credentials {
  std::string key_id;
  std::string secret;
  std::string session_token = {};  // for temporary credentials; otherwise empty
};

struct S3Settings {
  std::string bucket;
  std::string prefix;  // without '/' at its ends; may be empty
  std::string region;
  S3Credentials credentials;
  std::string ca_bundle;  // file of trusted certificates; empty: the system's

  // Where requests go.
  std::string origin;  // "https://host:port", to connect to
  std::string host;    // value of the header Host
  // Path before the key, percent-encoded: "/bucket", or "" if the host name has the
  // bucket.
  std::string root;

  // Returns a description for messages: "s3://bucket/prefix at http://minio:9000".
  std::string Describe() const;
};

using S3Environment = std::function<const char*(const char*)>;

bool IsS3Location(absl::string_view location);

// Fails with InvalidArgument (Failure::kUsage), and says what is missing or wrong.
absl::StatusOr<S3Settings> FindS3Settings(const std::string& location,
                                          const S3Environment& environment);

}  // namespace syncline
