#include "server/checkpoint/s3/settings.h"

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "comm/base/failure.h"
#include "comm/base/printable.h"
#include "comm/base/status.h"
#include "server/checkpoint/s3/signature.h"

namespace syncline {
namespace {

constexpr absl::string_view kScheme = "s3://";

// A key has at most 1,024 bytes, including the names of the job and its checkpoints.
constexpr size_t kMaxPrefixBytes = 512;

absl::Status Wrong(const std::string& message) {
  return WithFailure(absl::InvalidArgumentError(message), Failure::kUsage);
}

bool IsBucket(absl::string_view name) {
  const auto is_allowed = [](char c) {
    return absl::ascii_islower(static_cast<unsigned char>(c)) ||
           absl::ascii_isdigit(static_cast<unsigned char>(c)) || c == '-' || c == '.' ||
           c == '_';
  };
  return name.size() >= 3 && name.size() <= 63 && std::ranges::all_of(name, is_allowed) &&
         !absl::StrContains(name, "..") && name.front() != '.' && name.front() != '-';
}

absl::Status SplitLocation(const std::string& location, S3Settings& settings) {
  absl::string_view rest = location;
  absl::ConsumePrefix(&rest, kScheme);
  const size_t slash = std::min(rest.find('/'), rest.size());
  settings.bucket = std::string(rest.substr(0, slash));
  rest.remove_prefix(slash);
  while (absl::ConsumePrefix(&rest, "/")) {
  }
  while (absl::ConsumeSuffix(&rest, "/")) {
  }
  settings.prefix = std::string(rest);
  if (!IsBucket(settings.bucket)) {
    return Wrong(absl::StrCat("'", Printable(location),
                              "' names no bucket; write s3://BUCKET/PREFIX"));
  }
  const std::vector<std::string> parts = absl::StrSplit(settings.prefix, '/');
  const bool has_holes =
      !rest.empty() && std::ranges::any_of(parts, [](const auto& part) {
        return part.empty() || part == "." || part == "..";
      });
  if (has_holes || rest.size() > kMaxPrefixBytes || !IsPrintable(settings.prefix)) {
    return Wrong(
        absl::StrCat("the prefix of '", Printable(location),
                     "' is not a name: no part of it may be empty, '.' or '..'"));
  }
  return absl::OkStatus();
}

absl::Status SetAmazon(S3Settings& settings) {
  const bool is_china = absl::StartsWith(settings.region, "cn-");
  std::string host =
      absl::StrCat("s3.", settings.region, ".amazonaws.com", is_china ? ".cn" : "");
  // A certificate for *.s3.REGION.amazonaws.com does not cover a name with another dot.
  if (absl::StrContains(settings.bucket, ".")) {
    settings.root = absl::StrCat("/", UriEncodePath(settings.bucket));
  } else {
    host = absl::StrCat(settings.bucket, ".", host);
  }
  settings.origin = absl::StrCat("https://", host);
  settings.host = std::move(host);
  return absl::OkStatus();
}

// `endpoint`: "http://minio:9000" or "https://example.com/storage/s3".
absl::Status SetEndpoint(const std::string& endpoint, S3Settings& settings) {
  absl::string_view rest = endpoint;
  const bool seals = absl::ConsumePrefix(&rest, "https://");
  const bool is_plain = !seals && absl::ConsumePrefix(&rest, "http://");
  const size_t slash = std::min(rest.find('/'), rest.size());
  const absl::string_view authority = rest.substr(0, slash);
  absl::string_view path = rest.substr(slash);
  while (absl::ConsumeSuffix(&path, "/")) {
  }
  absl::string_view host = authority;
  absl::string_view port = seals ? "443" : "80";
  const size_t colon = authority.rfind(':');
  if (colon != authority.npos && authority.back() != ']') {
    host = authority.substr(0, colon);
    port = authority.substr(colon + 1);
  }
  uint32_t number = 0;
  const bool has_port = absl::SimpleAtoi(port, &number) && number > 0 && number < 65536;
  const bool is_clean = endpoint.find_first_of(" \t\r\n@?#\"'<>") == std::string::npos;
  if ((!seals && !is_plain) || host.empty() || !has_port || !is_clean) {
    const bool may_name_a_password = absl::StrContains(endpoint, "@");
    return Wrong(
        absl::StrCat("AWS_ENDPOINT_URL(_S3) ",
                     may_name_a_password ? "with an @ in it"
                                         : absl::StrCat("'", Printable(endpoint), "'"),
                     " is not an address; write http://HOST:PORT or https://HOST"));
  }
  const bool is_hex_ipv6 =
      absl::StartsWith(host, "[") && std::ranges::any_of(host, [](char c) {
        return absl::ascii_isalpha(static_cast<unsigned char>(c));
      });
  if (is_hex_ipv6) {
    return Wrong(absl::StrCat("AWS_ENDPOINT_URL(_S3) '", Printable(endpoint),
                              "' is an IPv6 address with letters, which the HTTP library "
                              "does not read; give the host a name"));
  }
  const bool is_usual = number == (seals ? 443u : 80u);
  settings.host = is_usual ? std::string(host) : absl::StrCat(host, ":", number);
  settings.origin = absl::StrCat(seals ? "https://" : "http://", host, ":", number);
  settings.root = absl::StrCat(path, "/", UriEncodePath(settings.bucket));
  return absl::OkStatus();
}

}  // namespace

std::string S3Settings::Describe() const {
  std::string location = absl::StrCat(kScheme, bucket);
  if (!prefix.empty()) absl::StrAppend(&location, "/", prefix);
  return absl::StrCat(location, " at ", origin);
}

bool IsS3Location(absl::string_view location) {
  return absl::StartsWith(location, kScheme);
}

absl::StatusOr<S3Settings> FindS3Settings(const std::string& location,
                                          const S3Environment& environment) {
  const auto first_of = [&](std::initializer_list<const char*> names) -> std::string {
    for (const char* name : names) {
      const char* value = environment(name);
      if (value != nullptr && *value != '\0') return value;
    }
    return "";
  };
  S3Settings settings;
  SYNCLINE_RETURN_IF_ERROR(SplitLocation(location, settings));
  settings.credentials = {.key_id = first_of({"AWS_ACCESS_KEY_ID"}),
                          .secret = first_of({"AWS_SECRET_ACCESS_KEY"}),
                          .session_token = first_of({"AWS_SESSION_TOKEN"})};
  if (settings.credentials.key_id.empty() || settings.credentials.secret.empty()) {
    return Wrong(absl::StrCat(
        "checkpoints in ", Printable(location),
        " need AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment (and "
        "AWS_SESSION_TOKEN for temporary credentials); profiles, web identities and "
        "instance roles are not read: aws configure export-credentials --format env "
        "turns them into variables"));
  }
  for (const auto& [name, value] :
       {std::pair{"AWS_ACCESS_KEY_ID", &settings.credentials.key_id},
        std::pair{"AWS_SECRET_ACCESS_KEY", &settings.credentials.secret},
        std::pair{"AWS_SESSION_TOKEN", &settings.credentials.session_token}}) {
    const bool is_clean = std::ranges::all_of(*value, [](char c) {
      return absl::ascii_isgraph(static_cast<unsigned char>(c));
    });
    if (!is_clean) {
      return Wrong(
          absl::StrCat(name,
                       " contains a space, a line break or another invisible character: "
                       "was it read from a file that ends with a newline?"));
    }
  }
  settings.region = first_of({"AWS_REGION", "AWS_DEFAULT_REGION"});
  if (settings.region.empty()) settings.region = "us-east-1";
  const bool is_region = std::ranges::all_of(settings.region, [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-';
  });
  if (!is_region) {
    return Wrong(absl::StrCat("AWS_REGION '", Printable(settings.region),
                              "' is not a region; write one such as eu-central-1"));
  }
  settings.ca_bundle = first_of({"AWS_CA_BUNDLE"});
  const std::string endpoint = first_of({"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"});
  SYNCLINE_RETURN_IF_ERROR(endpoint.empty() ? SetAmazon(settings)
                                            : SetEndpoint(endpoint, settings));
  return settings;
}

}  // namespace syncline
