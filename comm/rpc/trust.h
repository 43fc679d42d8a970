// Decides which peers this process accepts on the control plane: members of the cluster
// in its own certificate, and the names of --identities. TLS verifies that --tls-ca
// signed the peer's certificate; this code determines the peer's identity.
//
// Thread safety: any thread may call a Doorkeeper's methods.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "comm/rpc/authorities.h"
#include "comm/rpc/identity.h"
#include "comm/rpc/tls.h"

namespace grpc {
class ServerContextBase;
}

namespace syncline {

// Reads this process's certificate and --identities. Fails with Failure::kUsage, which
// names the flag of the wrong file.
absl::StatusOr<Acquaintances> LoadAcquaintances(const TlsOptions& tls);

// Checks the coordinator for a client: fails with PermissionDenied unless the names are
// those of a coordinator of the same cluster.
absl::Status CheckIsCoordinator(const SubjectNames& names, const TlsOptions& tls);

// The peer of a call.
struct Peer {
  std::optional<Identity> identity = {};  // none: plain text, which permits everything
  std::string serial = {};                // serial number of the certificate, hexadecimal
  absl::Time until = absl::InfiniteFuture();  // end of the certificate's validity
  std::string address = {};                   // "ipv4:10.0.0.7:41234"
  std::shared_ptr<PeerProof> proof = {};  // proof of the certificate; null: plain text
};

// Identifies the coordinator's peers.
class Doorkeeper {
 public:
  // Fails with Failure::kUsage when this process's certificate is not a coordinator's.
  static absl::StatusOr<std::unique_ptr<Doorkeeper>> Create(const TlsOptions& tls);

  // Fails with PermissionDenied when the peer's certificate has no role here.
  absl::StatusOr<Peer> PeerOf(const grpc::ServerContextBase& context) const;

 private:
  Doorkeeper(TlsOptions tls, Acquaintances known)
      : tls_(std::move(tls)), known_(std::move(known)) {}

  const TlsOptions tls_;
  const Acquaintances known_;
};

}  // namespace syncline
