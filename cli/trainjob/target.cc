#include "cli/trainjob/target.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "comm/base/printable.h"

namespace syncline {
namespace {

constexpr char kUrl[] = "KUBEFLOW_TRAINER_SERVER_URL";
constexpr char kToken[] = "KUBEFLOW_TRAINER_SERVER_TOKEN";
constexpr char kCaCert[] = "KUBEFLOW_TRAINER_SERVER_CA_CERT";
constexpr char kHttps[] = "https://";
// Tokens of service accounts have about 1 kB.
constexpr size_t kMaxTokenBytes = 16 << 10;

bool IsPlain(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c > ' ' && c <= '~'; });
}

// Of HOST, HOST:PORT, [ADDRESS] or [ADDRESS]:PORT.
bool HasValidPort(std::string_view authority) {
  const size_t colon = authority.rfind(':');
  if (colon == authority.npos || authority.find(']', colon) != authority.npos)
    return true;
  const std::string digits(authority.substr(colon + 1));
  uint32_t port = 0;
  return absl::SimpleAtoi(digits, &port) && port > 0 && port <= 65535;
}

absl::Status Wrong(const char* variable, const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat(variable, " ", why));
}

}  // namespace

absl::StatusOr<std::optional<TrainJobTarget>> TrainJobTarget::From(
    const Variables& variables) {
  const std::string url = variables(kUrl);
  if (url.empty()) return std::nullopt;
  const size_t host = sizeof(kHttps) - 1;
  if (!absl::StartsWithIgnoreCase(url, kHttps)) {
    return Wrong(kUrl, absl::StrCat("is '", Printable(url),
                                    "', which does not begin with https://: a token must "
                                    "not travel in the clear"));
  }
  const size_t path = std::min(url.find('/', host), url.size());
  const std::string_view authority = std::string_view(url).substr(host, path - host);
  if (authority.empty() || authority.find('@') != authority.npos || !IsPlain(url)) {
    return Wrong(kUrl, absl::StrCat("is '", Printable(url), "', which names no host"));
  }
  if (!HasValidPort(authority)) {
    return Wrong(kUrl, absl::StrCat("is '", Printable(url),
                                    "', whose port is no number from 1 to 65535"));
  }
  TrainJobTarget target = {.origin = absl::StrCat(kHttps, std::string(authority)),
                           .path = path == url.size() ? "/" : url.substr(path),
                           .token_file = variables(kToken),
                           .ca_file = variables(kCaCert)};
  if (target.token_file.empty()) {
    return Wrong(kToken, absl::StrCat("is not set, but ", kUrl, " is"));
  }
  return target;
}

absl::StatusOr<std::optional<TrainJobTarget>> TrainJobTarget::FromEnvironment() {
  return From([](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  });
}

absl::StatusOr<std::string> TrainJobTarget::ReadToken() const {
  const auto fails = [this](const char* why) {
    return absl::FailedPreconditionError(
        absl::StrCat("the token's file ", Printable(token_file), " ", why));
  };
  std::ifstream file(token_file, std::ios::binary);
  std::string bytes(kMaxTokenBytes + 1, '\0');
  if (!file.is_open()) return fails("cannot be opened");
  file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (file.bad()) return fails("cannot be read");
  bytes.resize(static_cast<size_t>(file.gcount()));
  const std::string token(absl::StripAsciiWhitespace(bytes));
  if (token.empty()) return fails("is empty");
  if (token.size() > kMaxTokenBytes || !IsPlain(token)) return fails("has no token");
  return token;
}

}  // namespace syncline
