// Decides which peers may use the coordinator's control plane, and for what, and keeps
// the audit log of that. With TLS the role in the certificate decides. Without TLS, on
// loopback, the peer's user on this host decides, unless TlsOptions::insecure admits
// everybody.
//
// Refusals are counted (syncline_auth_refused_total{door="control"}) and logged, also in
// the audit log. Of each kind from each host only the 1st, 2nd, 4th, 8th … is logged, so
// that refusals neither fill a disk nor hide other kinds. Admissions, changes of jobs and
// orders to servers to end are logged in the audit log only (docs/tls.md).
//
// Thread safety: any thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "comm/base/limits.h"
#include "comm/base/log.h"
#include "comm/base/repeats.h"
#include "comm/base/timeouts.h"
#include "comm/rpc/authorities.h"
#include "comm/rpc/front_door.h"
#include "comm/rpc/host_sockets.h"
#include "comm/rpc/local_user.h"
#include "comm/rpc/revoked.h"
#include "comm/rpc/roles.h"
#include "comm/rpc/tls.h"
#include "comm/rpc/trust.h"
#include "proto/coordinator.pb.h"
#include "server/admin/control_metrics.h"
#include "server/coordinator/coordinator.h"

namespace syncline {

struct GateOptions {
  TlsOptions tls = {};
  std::string revoked_file = {};  // comm/rpc/revoked.h; empty: no certificate is revoked
  size_t streams_per_certificate = kMaxWorkers;
  Timeouts timeouts = Timeouts::Derive(kDefaultFailureTimeout);
  LocalUsers users = LocalUsers::OfThisProcess();
  Logger log = {};
  Logger audit = {};
  ControlMetrics* metrics = nullptr;  // null: no metrics
};

class Gate {
 public:
  // Fails with Failure::kUsage if the TLS files are not a coordinator's, or if the list
  // of revoked certificates cannot be read.
  static absl::StatusOr<std::unique_ptr<Gate>> Create(GateOptions options);

  // Sets the address of the control plane, such as "127.0.0.1:7070". It is needed to look
  // up the user of a loopback connection. Until then a user that is not recognised is
  // asked to try again. `door`, the front door of that server, is told which peers were
  // admitted, and may close other connections when it needs room.
  void ServesAt(const std::string& address, std::shared_ptr<FrontDoor> door = nullptr)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Returns the peer that opens a stream, if it is admitted. Call StreamEnded once for
  // each admitted stream. Fails with Unavailable, without a Failure, if too many streams
  // use the same certificate.
  absl::StatusOr<Peer> AdmitStream(const grpc::ServerContextBase& context)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void StreamEnded(const Peer& peer) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the peer that makes a call, if it may do that.
  absl::StatusOr<Peer> AdmitCall(const grpc::ServerContextBase& context, Action action,
                                 const std::string& job);
  // Checks whether a message may be taken from a member whose stream was admitted. Its
  // certificate must not have been revoked since. A hello must have our protocol version
  // and failure timeout, and the peer's role must allow what the hello asks for. Fails
  // with Unavailable, without a Failure, if the certificate has expired or its authority
  // is no longer in --tls-ca. The member then connects again, with a new certificate if
  // it has one.
  absl::Status CheckMessage(const v1::MemberMessage& message, const Peer& peer) const;

  // Logs that a member was admitted.
  void Admitted(const Peer& peer, const v1::MemberMessage& hello);
  // Counts and logs that `what`, such as "a member", was refused.
  void Refused(const char* what, const Peer& peer, const absl::Status& why)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Logs a call that changes a job. `change` describes the change for people.
  void Updated(const Peer& peer, const std::string& job, const CallAnswer& answer,
               const std::string& change);
  // Logs a call that tells a server to end.
  void Drained(const Peer& peer, const std::string& server, bool force,
               const CallAnswer& answer);

 private:
  // The lists against which peers are checked.
  struct Lists {
    std::unique_ptr<Doorkeeper> doorkeeper;
    std::unique_ptr<RevokedList> revoked;
    std::unique_ptr<Authorities> authorities;  // null: plain text
    std::optional<LocalUsers> users;           // empty: all users are admitted
  };

  Gate(GateOptions options, Lists lists)
      : options_(std::move(options)), lists_(std::move(lists)) {}

  // Check what may change after the handshake.
  absl::Status CheckRevoked(const Peer& peer) const;
  absl::Status CheckAuthority(const Peer& peer) const;
  absl::Status CountStream(const Peer& peer) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status CheckUser(const Peer& peer) const ABSL_LOCKS_EXCLUDED(mutex_);
  void RefusedUser(const char* what, const Peer& peer, const absl::Status& why);
  // Logs a refusal, unless it repeats others.
  void Say(const char* what, const Peer& peer, const absl::Status& why);

  void LetIn(const Peer& peer) ABSL_LOCKS_EXCLUDED(mutex_);

  const GateOptions options_;
  const Lists lists_;
  Repeats refused_;

  mutable absl::Mutex mutex_;
  std::shared_ptr<FrontDoor> door_ ABSL_GUARDED_BY(mutex_);    // may be null
  std::vector<SocketName> serves_at_ ABSL_GUARDED_BY(mutex_);  // empty: not known yet
  bool can_tell_users_ ABSL_GUARDED_BY(mutex_) = true;
  // Number of streams by certificate, which is known by its serial number. Never 0.
  std::map<std::string, size_t> streams_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncline
