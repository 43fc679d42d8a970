#include "server/service/gate.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "comm/base/failure.h"
#include "comm/base/printable.h"
#include "comm/base/status.h"
#include "comm/rpc/attach_stream.h"
#include "grpcpp/server_context.h"

namespace syncline {
namespace {

// Enough for "0.1.0" and a suffix that a packager adds.
constexpr size_t kMaxBuildBytes = 64;

absl::Status CheckProtocol(uint32_t theirs, const std::string& build) {
  if (theirs == kProtocolVersion) return absl::OkStatus();
  return WithFailure(absl::FailedPreconditionError(absl::StrCat(
                         "client ", Printable(build, kMaxBuildBytes), " speaks protocol ",
                         theirs, ", this coordinator (", SYNCLINE_VERSION, ") speaks ",
                         kProtocolVersion, ": install the same version on both sides")),
                     Failure::kVersionMismatch);
}

absl::Status CheckFailureTimeout(uint32_t theirs_ms, absl::Duration ours) {
  const absl::Duration theirs = absl::Milliseconds(theirs_ms);
  if (theirs_ms == 0 || theirs == absl::Trunc(ours, absl::Milliseconds(1))) {
    return absl::OkStatus();
  }
  return WithFailure(absl::FailedPreconditionError(absl::StrCat(
                         "the failure timeout is ", absl::FormatDuration(theirs),
                         " here and ", absl::FormatDuration(ours),
                         " at the coordinator: give both the same (--failure-timeout, "
                         "SYNCLINE_FAILURE_TIMEOUT)")),
                     Failure::kUsage);
}

template <typename Hello>
absl::Status CheckTerms(const Hello& hello, const Timeouts& timeouts) {
  SYNCLINE_RETURN_IF_ERROR(
      CheckProtocol(hello.protocol_version(), hello.build_version()));
  return CheckFailureTimeout(hello.failure_timeout_ms(), timeouts.failure_timeout);
}

absl::Status CheckRole(const Peer& peer, Action action, const std::string& job) {
  return peer.identity ? CheckAllowed(*peer.identity, action, job) : absl::OkStatus();
}

// Returns "ipv4:10.0.0.7:41234" without the port, which differs for each connection.
std::string HostOf(const std::string& address) {
  return address.substr(0, address.rfind(':'));
}

std::string NameOf(const Peer& peer) {
  return peer.identity ? Describe(*peer.identity) : "unknown";
}

}  // namespace

absl::StatusOr<std::unique_ptr<Gate>> Gate::Create(GateOptions options) {
  Lists lists;
  SYNCLINE_ASSIGN_OR_RETURN(lists.doorkeeper, Doorkeeper::Create(options.tls));
  if (!options.revoked_file.empty() && !options.tls.HasTls()) {
    return WithFailure(
        absl::InvalidArgumentError("--revoked lists certificates that are no longer "
                                   "valid; give --tls-* as well"),
        Failure::kUsage);
  }
  SYNCLINE_ASSIGN_OR_RETURN(
      lists.revoked,
      RevokedList::Open({.path = options.revoked_file, .log = options.log}));
  if (!options.tls.ca_file.empty()) {
    SYNCLINE_ASSIGN_OR_RETURN(
        lists.authorities,
        Authorities::Open({.path = options.tls.ca_file, .log = options.log}));
  }
  if (!options.tls.HasTls() && !options.tls.insecure) {
    lists.users.emplace(options.users);
  }
  return std::unique_ptr<Gate>(new Gate(std::move(options), std::move(lists)));
}

void Gate::ServesAt(const std::string& address, std::shared_ptr<FrontDoor> door) {
  {
    absl::MutexLock lock(&mutex_);
    door_ = std::move(door);
  }
  if (!lists_.users) return;
  const std::vector<SocketName> names = NamesOf(address);
  const bool can_tell = lists_.users->CanTell(names);
  if (!can_tell) {
    options_.log.Warning(
        "every user of this host may attach and change jobs: without TLS, users are "
        "known from the kernel, which does not even say who listens here",
        {{"address", address}});
  }
  absl::MutexLock lock(&mutex_);
  serves_at_ = names;
  can_tell_users_ = can_tell;
}

void Gate::LetIn(const Peer& peer) {
  std::shared_ptr<FrontDoor> door;
  {
    absl::MutexLock lock(&mutex_);
    door = door_;
  }
  if (door != nullptr) door->LetIn(peer.address);
}

absl::Status Gate::CheckUser(const Peer& peer) const {
  if (!lists_.users) return absl::OkStatus();
  LocalUsers::Connection connection = {.peer = peer.address};
  {
    absl::MutexLock lock(&mutex_);
    if (!can_tell_users_) return absl::OkStatus();
    connection.servers = serves_at_;
  }
  const absl::Status verdict = lists_.users->Check(connection);
  if (verdict.ok() || !connection.servers.empty()) return verdict;
  return absl::UnavailableError(
      "this coordinator has only just begun to listen; try again");
}

absl::Status Gate::CheckRevoked(const Peer& peer) const {
  if (!lists_.revoked->Contains(peer.serial)) return absl::OkStatus();
  return WithFailure(
      absl::PermissionDeniedError(absl::StrCat(
          "the certificate of this ", NameOf(peer), " (serial ", peer.serial,
          ") was revoked; ask whoever runs the cluster for a new one (`syncline certs "
          "issue`)")),
      Failure::kUsage);
}

absl::Status Gate::CheckAuthority(const Peer& peer) const {
  if (peer.proof == nullptr || lists_.authorities == nullptr) return absl::OkStatus();
  const absl::Status verdict = lists_.authorities->Check(*peer.proof);
  if (verdict.ok()) return verdict;
  return absl::UnavailableError(absl::StrCat(
      "the certificate of this ", NameOf(peer), " (serial ", peer.serial, ") is ",
      verdict.message(), "; connect again with one of an authority in --tls-ca"));
}

absl::Status Gate::CountStream(const Peer& peer) {
  if (peer.serial.empty()) return absl::OkStatus();
  absl::MutexLock lock(&mutex_);
  size_t& streams = streams_[peer.serial];
  if (streams < options_.streams_per_certificate) {
    ++streams;
    return absl::OkStatus();
  }
  return absl::UnavailableError(
      absl::StrCat("the certificate of this ", NameOf(peer), " (serial ", peer.serial,
                   ") has ", streams,
                   " streams already (serve --streams-per-certificate); give machines "
                   "certificates of their own, or raise the limit"));
}

void Gate::StreamEnded(const Peer& peer) {
  if (peer.serial.empty()) return;
  absl::MutexLock lock(&mutex_);
  const auto found = streams_.find(peer.serial);
  if (--found->second == 0) streams_.erase(found);
}

absl::StatusOr<Peer> Gate::AdmitStream(const grpc::ServerContextBase& context) {
  absl::StatusOr<Peer> peer = lists_.doorkeeper->PeerOf(context);
  if (!peer.ok()) {
    Refused("a stream", {.address = context.peer()}, peer.status());
    return peer;
  }
  if (absl::Status user = CheckUser(*peer); !user.ok()) {
    RefusedUser("a stream", *peer, user);
    return user;
  }
  absl::Status allowed = CheckRevoked(*peer);
  if (allowed.ok()) allowed = CheckAuthority(*peer);
  if (allowed.ok()) {
    allowed = CountStream(*peer);
    if (!allowed.ok() && options_.metrics != nullptr) {
      options_.metrics->CountTurnedAway(ControlRefusal::kStreams);
    }
  }
  if (allowed.ok()) {
    LetIn(*peer);
    return peer;
  }
  Refused("a stream", *peer, allowed);
  return allowed;
}

absl::StatusOr<Peer> Gate::AdmitCall(const grpc::ServerContextBase& context,
                                     Action action, const std::string& job) {
  absl::StatusOr<Peer> peer = lists_.doorkeeper->PeerOf(context);
  if (!peer.ok()) {
    Refused("a call", {.address = context.peer()}, peer.status());
    return peer;
  }
  if (absl::Status user = CheckUser(*peer); !user.ok()) {
    RefusedUser("a call", *peer, user);
    return user;
  }
  absl::Status allowed = CheckRevoked(*peer);
  if (allowed.ok()) allowed = CheckAuthority(*peer);
  if (allowed.ok()) allowed = CheckRole(*peer, action, job);
  if (allowed.ok()) {
    LetIn(*peer);
    return peer;
  }
  Refused("a call", *peer, allowed);
  return allowed;
}

absl::Status Gate::CheckMessage(const v1::MemberMessage& message,
                                const Peer& peer) const {
  SYNCLINE_RETURN_IF_ERROR(CheckRevoked(peer));
  SYNCLINE_RETURN_IF_ERROR(CheckAuthority(peer));
  if (absl::Now() >= peer.until) {
    return absl::UnavailableError(absl::StrCat(
        "the certificate of this ", NameOf(peer), " (serial ", peer.serial,
        ") has expired; connect again with a new one (`syncline certs issue`)"));
  }
  if (message.has_server_hello()) {
    SYNCLINE_RETURN_IF_ERROR(CheckTerms(message.server_hello(), options_.timeouts));
    return CheckRole(peer, Action::kAttachAsServer, "");
  }
  if (message.has_worker_hello()) {
    SYNCLINE_RETURN_IF_ERROR(CheckTerms(message.worker_hello(), options_.timeouts));
    return CheckRole(peer, Action::kAttachAsWorker, message.worker_hello().job());
  }
  return absl::OkStatus();
}

void Gate::Admitted(const Peer& peer, const v1::MemberMessage& hello) {
  const bool is_worker = hello.has_worker_hello();
  options_.audit.Info("admitted",
                      {{"as", is_worker ? "worker" : "server"},
                       {"job", Printable(hello.worker_hello().job())},
                       {"name", Printable(is_worker ? hello.worker_hello().name()
                                                    : hello.server_hello().name())},
                       {"identity", NameOf(peer)},
                       {"serial", peer.serial},
                       {"peer", peer.address}});
}

void Gate::Refused(const char* what, const Peer& peer, const absl::Status& why) {
  if (absl::IsPermissionDenied(why) && options_.metrics != nullptr) {
    options_.metrics->CountTurnedAway(peer.identity ? ControlRefusal::kRole
                                                    : ControlRefusal::kNoRole);
  }
  Say(what, peer, why);
}

void Gate::RefusedUser(const char* what, const Peer& peer, const absl::Status& why) {
  if (absl::IsPermissionDenied(why) && options_.metrics != nullptr) {
    options_.metrics->CountTurnedAway(ControlRefusal::kLocalUser);
  }
  Say(what, peer, why);
}

void Gate::Say(const char* what, const Peer& peer, const absl::Status& why) {
  const std::string reason = Printable(std::string(why.message()), 1000);
  // Reasons contain words that the client chose, and one client may use many hosts. So
  // neither is part of the group (comm/base/repeats.h).
  const std::string group = absl::StrCat(NameOf(peer), "\n", what);
  const uint64_t count =
      refused_.ToSay(absl::StrJoin({HostOf(peer.address), group, reason}, "\n"), group);
  if (count == 0) return;
  options_.log.Warning(absl::StrCat("refused ", what),
                       {{"reason", reason}, {"peer", peer.address}, {"refused", count}});
  options_.audit.Warning("refused", {{"what", what},
                                     {"reason", reason},
                                     {"identity", NameOf(peer)},
                                     {"serial", peer.serial},
                                     {"peer", peer.address},
                                     {"refused", count}});
}

void Gate::Updated(const Peer& peer, const std::string& job, const CallAnswer& answer,
                   const std::string& change) {
  options_.audit.Info(answer.status.ok() ? "changed a job" : "could not change a job",
                      {{"job", Printable(job)},
                       {"change", Printable(change, 1000)},
                       {"epoch", answer.changed.epoch},
                       {"reason", Printable(std::string(answer.status.message()))},
                       {"identity", NameOf(peer)},
                       {"serial", peer.serial},
                       {"peer", peer.address}});
}

void Gate::Drained(const Peer& peer, const std::string& server, bool force,
                   const CallAnswer& answer) {
  options_.audit.Info(
      answer.status.ok() ? "told a server to end" : "could not tell a server to end",
      {{"server", Printable(server)},
       {"force", force},
       {"reason", Printable(std::string(answer.status.message()))},
       {"identity", NameOf(peer)},
       {"serial", peer.serial},
       {"peer", peer.address}});
}

}  // namespace syncline
