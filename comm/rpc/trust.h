// Whom this process believes on the control plane: the cluster of its own certificate, and
// the names of --identities. Whether the peer's certificate is signed by --tls-ca is for
// TLS to find out; this says who it is.
//
// Thread safety: Trust is immutable. Doorkeeper may be asked from any thread.
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

// Reads the own certificate and --identities. Failure::kUsage names the flag of a file
// that is wrong.
absl::StatusOr<Acquaintances> LoadAcquaintances(const TlsOptions& tls);

// Of clients: PermissionDenied unless these are a coordinator's, and of the own cluster.
absl::Status CheckIsCoordinator(const SubjectNames& names, const TlsOptions& tls);

// The other end of a call.
struct Peer {
  std::optional<Identity> identity = {};      // none: plain text, where anyone may do all
  std::string serial = {};                    // of its certificate, hexadecimal
  absl::Time until = absl::InfiniteFuture();  // when that ends
  std::string address = {};                   // "ipv4:10.0.0.7:41234"
  std::shared_ptr<PeerProof> proof = {};      // of its certificate; null: plain text
};

// Of the coordinator.
class Doorkeeper {
 public:
  // Failure::kUsage when the own certificate is no coordinator's.
  static absl::StatusOr<std::unique_ptr<Doorkeeper>> Create(const TlsOptions& tls);

  // PermissionDenied when the peer's certificate has no role here.
  absl::StatusOr<Peer> PeerOf(const grpc::ServerContextBase& context) const;

 private:
  Doorkeeper(TlsOptions tls, Acquaintances known)
      : tls_(std::move(tls)), known_(std::move(known)) {}

  const TlsOptions tls_;
  const Acquaintances known_;
};

}  // namespace syncline
