// The identity of a peer of the control plane, by the names in its certificate.
//
// Our own certificates name exactly one URI:
//
//   spiffe://DOMAIN/syncline/CLUSTER/role/ROLE            coordinator, server, operator, reader
//   spiffe://DOMAIN/syncline/CLUSTER/job/JOB/role/worker
//
// DOMAIN has lower-case letters, digits, '.', '-' and '_'; CLUSTER and JOB have upper-case
// letters, too. Nothing is escaped, as SPIFFE demands. Certificates of other makers get
// their roles from a file (--identities), a name and a role in each line:
//
//   # csi-driver-spiffe and cert-manager
//   URI:spiffe://cluster.local/ns/ml/sa/trainer   worker bert
//   DNS:coordinator.ml.svc                        coordinator
//
// Pure functions; from any thread.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace syncline {

enum class Role { kCoordinator, kServer, kWorker, kOperator, kReader };

// "coordinator", and back; InvalidArgument names all roles.
std::string_view RoleName(Role role);
absl::StatusOr<Role> ParseRole(std::string_view name);

struct Cluster {
  std::string trust_domain;
  std::string name;
  friend bool operator==(const Cluster&, const Cluster&) = default;
};

struct Identity {
  Role role = Role::kReader;
  std::string job = {};                 // of a worker, and of nobody else
  std::optional<Cluster> cluster = {};  // none for those of --identities
  friend bool operator==(const Identity&, const Identity&) = default;
};

// "worker of job 'bert'", "operator".
std::string Describe(const Identity& identity);

// InvalidArgument says what is wrong with `uri`.
absl::StatusOr<Identity> ParseIdentityUri(std::string_view uri);

// "spiffe://DOMAIN/syncline/CLUSTER", which an authority of ours has, and back.
// InvalidArgument when a part has what a URI must not have.
absl::StatusOr<std::string> UriOf(const Cluster& cluster);
absl::StatusOr<Cluster> ParseCluster(std::string_view uri);

// REQUIRES: a cluster. InvalidArgument when a name has what a URI must not have.
absl::StatusOr<std::string> UriOf(const Identity& identity);

// The names in a certificate, as it has them.
struct SubjectNames {
  std::vector<std::string> uris = {};
  std::vector<std::string> hosts = {};  // DNS names
};

// "URI:spiffe://…" or "DNS:…" -> who that is.
using IdentityMap = std::map<std::string, Identity, std::less<>>;

// InvalidArgument names the line. A name stands there once.
absl::StatusOr<IdentityMap> ParseIdentityMap(std::string_view text);

// Whom a process believes: members of its cluster, and those that it was told about.
struct Acquaintances {
  std::optional<Cluster> cluster = {};  // as its own certificate has it
  IdentityMap others = {};
};

// PermissionDenied says why the names are nobody's, or not one's alone, and what to do. The
// caller puts "its certificate" before it: "names no role (it has DNS:a); make …".
absl::StatusOr<Identity> Identify(const SubjectNames& names, const Acquaintances& known);

}  // namespace syncline
