// The coordinator's door on the control plane: who may come in and for what, and what is
// written down of it. With TLS roles decide; without it, on loopback, which user of this host
// somebody is, unless all may come in (TlsOptions::insecure).
//
// Refusals are counted (syncline_auth_refused_total{door="control"}), and said in the log
// and in the audit log: of one kind from one host the 1st, 2nd, 4th, 8th …, so that nobody
// fills a disk, nor hides one kind behind another.
// Admissions, changes of jobs and servers that are told to end are said in the audit log alone (docs/tls.md).
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
  std::string revoked_file = {};  // comm/rpc/revoked.h; empty: nothing is
  size_t streams_per_certificate = kMaxWorkers;
  Timeouts timeouts = Timeouts::Derive(kDefaultFailureTimeout);
  LocalUsers users = LocalUsers::OfThisProcess();
  Logger log = {};
  Logger audit = {};
  ControlMetrics* metrics = nullptr;  // or none
};

class Gate {
 public:
  // Failure::kUsage for TLS files that are not a coordinator's, and for a list of revoked
  // certificates that cannot be read.
  static absl::StatusOr<std::unique_ptr<Gate>> Create(GateOptions options);

  // Where the control plane listens, "127.0.0.1:7070"; tells connections of loopback
  // apart. Anyone who comes earlier and is not known is asked to come back. The `door` of
  // that server hears who was let in, and need not make room for others.
  void ServesAt(const std::string& address, std::shared_ptr<FrontDoor> door = nullptr)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // The peer that opens a stream. StreamEnded is called once for each that is admitted.
  // Unavailable, without a Failure, for a certificate that has too many of them.
  absl::StatusOr<Peer> AdmitStream(const grpc::ServerContextBase& context)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void StreamEnded(const Peer& peer) ABSL_LOCKS_EXCLUDED(mutex_);
  // The peer that calls, if it may do this.
  absl::StatusOr<Peer> AdmitCall(const grpc::ServerContextBase& context, Action action,
                                 const std::string& job);
  // Whether a member may be listened to: its certificate was not revoked since it came in,
  // and when it says hello, it speaks our protocol, with our failure timeout, and its role
  // is for what it wants to be. Unavailable, without a Failure, once its certificate has
  // ended, or whoever signed it is no longer in --tls-ca: then it dials again, with a new
  // one if it has that.
  absl::Status CheckMessage(const v1::MemberMessage& message, const Peer& peer) const;

  // A member is in.
  void Admitted(const Peer& peer, const v1::MemberMessage& hello);
  // `what`, such as "a member", was refused.
  void Refused(const char* what, const Peer& peer, const absl::Status& why)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // `change`, from what to what, is for people.
  void Updated(const Peer& peer, const std::string& job, const CallAnswer& answer,
               const std::string& change);
  // A server that was to be told to end.
  void Drained(const Peer& peer, const std::string& server, bool force,
               const CallAnswer& answer);

 private:
  // What decides whether a peer is believed.
  struct Lists {
    std::unique_ptr<Doorkeeper> doorkeeper;
    std::unique_ptr<RevokedList> revoked;
    std::unique_ptr<Authorities> authorities;  // null: plain text
    std::optional<LocalUsers> users;           // none: all may come in
  };

  Gate(GateOptions options, Lists lists)
      : options_(std::move(options)), lists_(std::move(lists)) {}

  // What may change after a handshake.
  absl::Status CheckRevoked(const Peer& peer) const;
  absl::Status CheckAuthority(const Peer& peer) const;
  absl::Status CountStream(const Peer& peer) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status CheckUser(const Peer& peer) const ABSL_LOCKS_EXCLUDED(mutex_);
  void RefusedUser(const char* what, const Peer& peer, const absl::Status& why);
  // Writes it down.
  void Say(const char* what, const Peer& peer, const absl::Status& why);

  void LetIn(const Peer& peer) ABSL_LOCKS_EXCLUDED(mutex_);

  const GateOptions options_;
  const Lists lists_;
  Repeats refused_;

  mutable absl::Mutex mutex_;
  std::shared_ptr<FrontDoor> door_ ABSL_GUARDED_BY(mutex_);    // or none
  std::vector<SocketName> serves_at_ ABSL_GUARDED_BY(mutex_);  // none: not known yet
  bool can_tell_users_ ABSL_GUARDED_BY(mutex_) = true;
  // By serial number, of certificates that have some.
  std::map<std::string, size_t> streams_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncline
