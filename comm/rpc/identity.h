// Derives the identity of a peer of the control plane from the names in its certificate.
//
// Our own certificates name exactly one URI:
//
//   spiffe://DOMAIN/syncline/CLUSTER/role/ROLE  coordinator, server, operator, reader
//   spiffe://DOMAIN/syncline/CLUSTER/job/JOB/role/worker
//
// DOMAIN has lower-case letters, digits, '.', '-' and '_'; CLUSTER and JOB also
// upper-case letters. Nothing is escaped, as SPIFFE requires. Certificates from other
// authorities get their roles from a file (--identities), with a name and a role in each
// line:
//
//   # csi-driver-spiffe and cert-manager
//   URI:spiffe://cluster.local/ns/ml/sa/trainer   worker bert
//   DNS:coordinator.ml.svc                        coordinator
//
// Pure functions, callable from any thread.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace syncline {

enum class Role { kCoordinator, kServer, kWorker, kOperator, kReader };

// Convert between a role and its name, such as "coordinator". InvalidArgument lists all
// roles.
std::string_view RoleName(Role role);
absl::StatusOr<Role> ParseRole(std::string_view name);

struct Cluster {
  std::string trust_domain;
  std::string name;
  friend bool operator==(const Cluster&, const Cluster&) = default;
};

struct Identity {
  Role role = Role::kReader;
  std::string job = {};                 // job of a worker; empty for other roles
  std::optional<Cluster> cluster = {};  // none for identities of --identities
  friend bool operator==(const Identity&, const Identity&) = default;
};

// Returns text such as "worker of job 'bert'" or "operator".
std::string Describe(const Identity& identity);

// Fails with InvalidArgument, and says what is wrong with `uri`.
absl::StatusOr<Identity> ParseIdentityUri(std::string_view uri);

// Convert between a cluster and the URI of its authority,
// "spiffe://DOMAIN/syncline/CLUSTER". InvalidArgument when a part has characters that a
// URI must not have.
absl::StatusOr<std::string> UriOf(const Cluster& cluster);
absl::StatusOr<Cluster> ParseCluster(std::string_view uri);

// REQUIRES: `identity` has a cluster. Fails with InvalidArgument when a name has
// characters that a URI must not have.
absl::StatusOr<std::string> UriOf(const Identity& identity);

// The names in a certificate, unchanged.
struct SubjectNames {
  std::vector<std::string> uris = {};
  std::vector<std::string> hosts = {};  // DNS names
};

// Maps "URI:spiffe://…" or "DNS:…" to an identity.
using IdentityMap = std::map<std::string, Identity, std::less<>>;

// Parses the text of --identities. Each name may occur once. InvalidArgument names the
// wrong line.
absl::StatusOr<IdentityMap> ParseIdentityMap(std::string_view text);

// The identities that a process accepts: members of its cluster, and those of
// --identities.
struct Acquaintances {
  std::optional<Cluster> cluster = {};  // the one in its own certificate
  IdentityMap others = {};
};

// Fails with PermissionDenied when the names belong to no identity, or to several, and
// says what to do. The message continues "its certificate": "names no role (it has
// DNS:a); make …".
absl::StatusOr<Identity> Identify(const SubjectNames& names, const Acquaintances& known);

}  // namespace syncline
