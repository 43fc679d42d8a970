#include "server/etcd/etcd_address.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "comm/base/status.h"
#include "comm/rpc/address.h"

namespace syncline {
namespace {

constexpr std::string_view kScheme = "etcd://";
constexpr std::string_view kDefaultPrefix = "/syncline";
constexpr size_t kLongestPrefix = 256;

bool IsPrefixCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         c == '/' || c == '-' || c == '_' || c == '.';
}

absl::Status CheckPrefix(const std::string& prefix) {
  if (prefix.size() > kLongestPrefix) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the path has ", prefix.size(), " characters, but at most ", kLongestPrefix));
  }
  if (std::ranges::all_of(prefix, IsPrefixCharacter) &&
      !absl::StrContains(prefix, "//")) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("the path '", prefix,
                   "' may have letters, digits, '-', '_', '.' and single '/' only"));
}

}  // namespace

std::string EtcdAddress::ToString() const {
  return absl::StrCat(std::string(kScheme), absl::StrJoin(members, ","), prefix);
}

absl::StatusOr<EtcdAddress> ParseEtcdAddress(std::string_view text) {
  std::string rest(text);
  if (!rest.starts_with(kScheme)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", rest,
        "' is not an address of etcd; write etcd://HOST:PORT,HOST:PORT/PREFIX, "
        "such as etcd://10.0.0.1:2379/syncline"));
  }
  rest.erase(0, kScheme.size());
  const size_t slash = rest.find('/');
  EtcdAddress address;
  SYNCLINE_ASSIGN_OR_RETURN(address.members, ParseAddresses(rest.substr(0, slash)));
  if (slash != std::string::npos) address.prefix = rest.substr(slash);
  while (address.prefix.ends_with('/')) address.prefix.pop_back();
  if (address.prefix.empty()) address.prefix = kDefaultPrefix;
  SYNCLINE_RETURN_IF_ERROR(CheckPrefix(address.prefix));
  return address;
}

absl::Status CheckEtcdTls(const EtcdAddress& address, const EtcdTls& tls, bool insecure) {
  if (tls.cert_file.empty() != tls.key_file.empty()) {
    return absl::InvalidArgumentError(
        "--etcd-cert and --etcd-key belong together; give both");
  }
  if (!tls.cert_file.empty() && tls.ca_file.empty()) {
    return absl::InvalidArgumentError(
        "--etcd-cert needs --etcd-ca, the authority of etcd's own certificates");
  }
  if (!tls.ca_file.empty() || insecure) return absl::OkStatus();
  for (const std::string& member : address.members) {
    SYNCLINE_ASSIGN_OR_RETURN(const HostPort target, ParseHostPort(member));
    if (IsLoopback(target.host)) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "refusing to speak to etcd at ", member,
        " in plain text: the state holds keys of jobs; give --etcd-ca (and --etcd-cert, "
        "--etcd-key where etcd wants them), or --insecure on a network you trust"));
  }
  return absl::OkStatus();
}

}  // namespace syncline
