// Where a bucket is and who may use it: "s3://bucket/prefix", and the environment variables
// that other programs for S3 read, too.
//
//   AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN
//   AWS_REGION, AWS_DEFAULT_REGION                 us-east-1 where neither is set
//   AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL          of MinIO and others; empty: Amazon's
//   AWS_CA_BUNDLE                                  certificates instead of the system's
#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace syncline {

struct S3Credentials {
  std::string key_id;
  std::string secret;
  std::string session_token = {};  // of temporary ones; empty: none
};

struct S3Settings {
  std::string bucket;
  std::string prefix;  // without '/' at its ends; may be empty
  std::string region;
  S3Credentials credentials;
  std::string ca_bundle;  // a file; empty: the system's

  // Where requests go.
  std::string origin;  // "https://host:port", as one connects
  std::string host;    // as the header Host has it
  std::string
      root;  // before the key, percent-encoded: "/bucket", or "" if the host says it

  // For people: "s3://bucket/prefix at http://minio:9000".
  std::string Describe() const;
};

using S3Environment = std::function<const char*(const char*)>;

bool IsS3Location(absl::string_view location);

// InvalidArgument (Failure::kUsage) says what is missing or wrong.
absl::StatusOr<S3Settings> FindS3Settings(const std::string& location,
                                          const S3Environment& environment);

}  // namespace syncline
