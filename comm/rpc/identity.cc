#include "comm/rpc/identity.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "comm/base/printable.h"
#include "comm/base/status.h"

namespace syncline {
namespace {

constexpr std::string_view kScheme = "spiffe://";
constexpr std::string_view kOurs = "syncline";
constexpr size_t kMaxPartBytes = 255;
constexpr size_t kMaxUriBytes = 2048;  // SPIFFE's limit
constexpr size_t kMaxMapLines = 1 << 16;

constexpr std::array<std::pair<Role, std::string_view>, 5> kRoles = {{
    {Role::kCoordinator, "coordinator"},
    {Role::kServer, "server"},
    {Role::kWorker, "worker"},
    {Role::kOperator, "operator"},
    {Role::kReader, "reader"},
}};

absl::Status Invalid(const std::string& message) {
  return absl::InvalidArgumentError(message);
}

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

absl::Status CheckPart(std::string_view what, std::string_view part,
                       bool (*is_allowed)(char)) {
  const bool is_dots = part == "." || part == "..";
  if (!part.empty() && part.size() <= kMaxPartBytes && !is_dots &&
      std::all_of(part.begin(), part.end(), is_allowed)) {
    return absl::OkStatus();
  }
  return Invalid(absl::StrCat(View(what), " '", Printable(part),
                              "' cannot be used in a certificate: allowed are letters, "
                              "digits, '.', '-' and '_', 1 to ",
                              kMaxPartBytes, " of them"));
}

bool IsPathCharacter(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '-' ||
         c == '_';
}

bool IsDomainCharacter(char c) {
  return IsPathCharacter(c) && !absl::ascii_isupper(static_cast<unsigned char>(c));
}

absl::Status CheckParts(const Cluster& cluster) {
  SYNCLINE_RETURN_IF_ERROR(
      CheckPart("the trust domain", cluster.trust_domain, IsDomainCharacter));
  return CheckPart("the cluster", cluster.name, IsPathCharacter);
}

bool IsOurs(std::string_view uri) {
  const std::vector<std::string> parts = absl::StrSplit(View(uri), '/');
  return absl::StartsWith(View(uri), View(kScheme)) && parts.size() > 3 &&
         parts[3] == kOurs;
}

absl::Status Nobody(const std::string& why) {
  return absl::PermissionDeniedError(
      absl::StrCat(why,
                   "; make a certificate with `syncline certs issue DIR --role ROLE`, or "
                   "list it in the file of "
                   "--identities"));
}

std::string Written(const SubjectNames& names) {
  std::vector<std::string> all;
  for (const std::string& uri : names.uris) all.push_back("URI:" + Printable(uri));
  for (const std::string& host : names.hosts) all.push_back("DNS:" + Printable(host));
  return all.empty() ? "no names at all" : absl::StrJoin(all, ", ");
}

// Returns the identity in a URI of our form, if it belongs to our cluster.
absl::StatusOr<Identity> IdentifyOurs(const std::string& uri,
                                      const std::optional<Cluster>& cluster) {
  absl::StatusOr<Identity> identity = ParseIdentityUri(uri);
  if (!identity.ok()) {
    return Nobody(absl::StrCat("names ", Printable(uri), ", which is not an identity (",
                               identity.status().message(), ")"));
  }
  if (!cluster) {
    return Nobody(absl::StrCat("names ", uri,
                               ", but the certificate of this side names no cluster"));
  }
  if (identity->cluster == cluster) return identity;
  return Nobody(absl::StrCat("is of cluster ", identity->cluster->trust_domain, "/",
                             identity->cluster->name, ", this one is ",
                             cluster->trust_domain, "/", cluster->name));
}

// Parses the rest of a line such as "worker bert".
absl::StatusOr<Identity> ParseMapped(const std::vector<std::string>& words) {
  Identity identity;
  SYNCLINE_ASSIGN_OR_RETURN(identity.role, ParseRole(words[1]));
  const size_t expected = identity.role == Role::kWorker ? 3 : 2;
  if (words.size() != expected) {
    return Invalid(expected == 3 ? "a worker has a role and a job: 'worker JOB'"
                                 : "there is more than a name and a role");
  }
  if (expected == 3) identity.job = words[2];
  return identity;
}

}  // namespace

std::string_view RoleName(Role role) {
  for (const auto& [known, name] : kRoles) {
    if (known == role) return name;
  }
  return "unknown";
}

absl::StatusOr<Role> ParseRole(std::string_view name) {
  for (const auto& [role, known] : kRoles) {
    if (known == name) return role;
  }
  return Invalid(absl::StrCat(
      "'", Printable(name),
      "' is not a role; there are coordinator, server, worker, operator and reader"));
}

std::string Describe(const Identity& identity) {
  return identity.role == Role::kWorker
             ? absl::StrCat("worker of job '", Printable(identity.job), "'")
             : std::string(RoleName(identity.role));
}

absl::StatusOr<Identity> ParseIdentityUri(std::string_view uri) {
  if (uri.size() > kMaxUriBytes || !absl::StartsWith(View(uri), View(kScheme))) {
    return Invalid(absl::StrCat("it is not ", View(kScheme), "…, or too long"));
  }
  const std::vector<std::string> parts =
      absl::StrSplit(View(uri.substr(kScheme.size())), '/');
  const bool is_of_cluster = parts.size() == 5 && parts[3] == "role";
  const bool is_of_job = parts.size() == 7 && parts[3] == "job" && parts[5] == "role";
  if ((!is_of_cluster && !is_of_job) || parts[1] != kOurs) {
    return Invalid(
        "it is neither …/syncline/CLUSTER/role/ROLE nor "
        "…/syncline/CLUSTER/job/JOB/role/worker");
  }
  Identity identity;
  identity.cluster = Cluster{parts[0], parts[2]};
  SYNCLINE_RETURN_IF_ERROR(CheckParts(*identity.cluster));
  SYNCLINE_ASSIGN_OR_RETURN(identity.role, ParseRole(parts.back()));
  if ((identity.role == Role::kWorker) != is_of_job) {
    return Invalid("only workers have a job: …/job/JOB/role/worker");
  }
  if (is_of_job) {
    SYNCLINE_RETURN_IF_ERROR(CheckPart("the job", parts[4], IsPathCharacter));
    identity.job = parts[4];
  }
  return identity;
}

absl::StatusOr<std::string> UriOf(const Cluster& cluster) {
  SYNCLINE_RETURN_IF_ERROR(CheckParts(cluster));
  return absl::StrCat(View(kScheme), cluster.trust_domain, "/", View(kOurs), "/",
                      cluster.name);
}

absl::StatusOr<Cluster> ParseCluster(std::string_view uri) {
  // The URI of a cluster is the beginning of its members' URIs.
  SYNCLINE_ASSIGN_OR_RETURN(const Identity member,
                            ParseIdentityUri(absl::StrCat(View(uri), "/role/reader")));
  return *member.cluster;
}

absl::StatusOr<std::string> UriOf(const Identity& identity) {
  SYNCLINE_ASSIGN_OR_RETURN(std::string uri, UriOf(*identity.cluster));
  if (identity.role == Role::kWorker) {
    SYNCLINE_RETURN_IF_ERROR(CheckPart("the job", identity.job, IsPathCharacter));
    absl::StrAppend(&uri, "/job/", identity.job);
  }
  return absl::StrCat(uri, "/role/", View(RoleName(identity.role)));
}

absl::StatusOr<IdentityMap> ParseIdentityMap(std::string_view text) {
  IdentityMap map;
  size_t number = 0;
  for (absl::string_view raw : absl::StrSplit(View(text), '\n')) {
    ++number;
    const auto in_line = [number](const std::string& message) {
      return Invalid(absl::StrCat("line ", number, ": ", message));
    };
    if (number > kMaxMapLines) return in_line("there are too many lines");
    const std::string line(absl::StripAsciiWhitespace(raw));
    if (line.empty() || line[0] == '#') continue;
    const std::vector<std::string> words =
        absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    const std::string& name = words[0];
    const bool has_kind =
        absl::StartsWith(name, "URI:") || absl::StartsWith(name, "DNS:");
    if (words.size() < 2 || !has_kind || name.size() == 4 ||
        !IsPrintable(absl::StrJoin(words, " "))) {
      return in_line(absl::StrCat("'", Printable(line),
                                  "' is not 'URI:NAME ROLE', 'DNS:NAME ROLE' or "
                                  "'URI:NAME worker JOB'"));
    }
    const absl::StatusOr<Identity> identity = ParseMapped(words);
    if (!identity.ok()) return in_line(std::string(identity.status().message()));
    if (!map.emplace(name, *identity).second) {
      return in_line(absl::StrCat(name, " is listed already"));
    }
  }
  return map;
}

absl::StatusOr<Identity> Identify(const SubjectNames& names, const Acquaintances& known) {
  if (names.uris.size() > 1) {
    return Nobody(absl::StrCat("has ", names.uris.size(), " URIs, not one"));
  }
  std::vector<Identity> found;
  const auto look_up = [&](const std::string& name) {
    const auto mapped = known.others.find(name);
    if (mapped != known.others.end()) found.push_back(mapped->second);
    return mapped != known.others.end();
  };
  for (const std::string& uri : names.uris) {
    if (look_up("URI:" + uri) || !IsOurs(uri)) continue;
    SYNCLINE_ASSIGN_OR_RETURN(Identity ours, IdentifyOurs(uri, known.cluster));
    found.push_back(std::move(ours));
  }
  for (const std::string& host : names.hosts) look_up("DNS:" + host);
  if (found.empty()) {
    return Nobody(absl::StrCat("names no role (it has ", Written(names), ")"));
  }
  for (const Identity& other : found) {
    if (other == found.front()) continue;
    return Nobody(absl::StrCat("names two roles: ", Describe(found.front()), " and ",
                               Describe(other)));
  }
  return found.front();
}

}  // namespace syncline
