#include "comm/collective/group/tcp_wire.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/base/status.h"
#include "comm/collective/group/tcp_peer.h"

namespace syncline::collective {
namespace {

constexpr std::string_view kMagic = "SLG1";
constexpr absl::Duration kDialAgain = absl::Milliseconds(50);
// All ranks have announced that they listen. One that refuses connections for this long
// has ended. One that does not answer may only be late, because its host accepts
// connections as soon as it listens.
constexpr absl::Duration kDialPatience = absl::Seconds(2);
constexpr absl::Duration kNap = absl::Milliseconds(5);
// Limits the connections of strangers at the same time; there is always room for the
// members of a group.
constexpr size_t kLeastPending = 64;

// The rank that dials, and the rank that it wants to reach.
struct Claim {
  uint64_t rank = 0;
  uint64_t nonce = 0;
  uint64_t peer_nonce = 0;
};

std::string EncodeClaim(const Claim& claim) {
  std::string bytes(kMagic);
  bytes.append(reinterpret_cast<const char*>(&claim), sizeof claim);
  return bytes;
}

std::optional<Claim> ParseClaim(std::string_view bytes) {
  Claim claim;
  if (bytes.size() != kMagic.size() + sizeof claim || !bytes.starts_with(kMagic)) {
    return std::nullopt;
  }
  std::memcpy(&claim, bytes.data() + kMagic.size(), sizeof claim);
  return claim;
}

}  // namespace

TcpWire::TcpWire(const TcpWireOptions& options)
    : PeerWire(options.rank, options.failure_timeout, clock_), options_(options) {}

absl::StatusOr<std::unique_ptr<TcpWire>> TcpWire::Listen(const TcpWireOptions& options) {
  std::unique_ptr<TcpWire> wire(new TcpWire(options));
  SYNCLINE_ASSIGN_OR_RETURN(
      wire->transport_,
      CreateTcpTransport({.security = options.security,
                          .listen_host = options.host,
                          .acceptor = wire.get(),
                          .failure_timeout = options.failure_timeout,
                          .max_pending = std::max(
                              kLeastPending, 2 * static_cast<size_t>(options.ranks))},
                         *wire));
  return wire;
}

TcpWire::~TcpWire() {
  if (transport_ == nullptr) return;
  SendToAll({.kind = TcpWireMessage::kLeft});
  Settle();
  for (const auto& peer : peers()) {
    if (peer != nullptr) peer->Close();
  }
}

// ---- How members meet ----

TcpPeer* TcpWire::PeerOf(std::string_view identity) const {
  const std::optional<Claim> claim = ParseClaim(identity);
  if (!claim || claim->rank >= peers().size() || claim->peer_nonce != options_.nonce) {
    return nullptr;
  }
  TcpPeer* const peer = peers()[claim->rank].get();
  return peer != nullptr && peer->card().nonce == claim->nonce ? peer : nullptr;
}

const SecretKey* TcpWire::FindKey(std::string_view identity) {
  return PeerOf(identity) != nullptr ? &key_ : nullptr;
}

ConnectOptions TcpWire::OnAccepted(const std::string& identity,
                                   std::unique_ptr<Endpoint> endpoint) {
  TcpPeer* const peer = PeerOf(identity);
  // A rank that has met does not dial again, so a second connection is closed.
  if (peer == nullptr || peer->rank() < options_.rank || peer->has_met()) {
    return {.receiver = this};
  }
  ConnectOptions options = peer->Take(std::move(endpoint));
  peer->Send({.kind = TcpWireMessage::kHello});
  return options;
}

// For connections that do not belong to a member.
absl::StatusOr<Buffer> TcpWire::Allocate(ByteView, size_t) {
  return absl::InvalidArgumentError("not from a member of the group");
}
void TcpWire::OnMessage(ByteView, Buffer) {}

absl::Status TcpWire::Dial(TcpPeer& peer) {
  const Claim claim = {.rank = static_cast<uint64_t>(options_.rank),
                       .nonce = options_.nonce,
                       .peer_nonce = peer.card().nonce};
  ConnectOptions options = peer.Take(nullptr);
  options.key = {.identity = EncodeClaim(claim), .key = key_};
  SYNCLINE_ASSIGN_OR_RETURN(auto endpoint,
                            transport_->Connect(peer.card().address, std::move(options)));
  peer.Dialled(std::move(endpoint), clock_.Now());
  return absl::OkStatus();
}

absl::Status TcpWire::CheckMissing(absl::Duration now, absl::Duration deadline) const {
  for (const auto& peer : peers()) {
    if (peer == nullptr || peer->has_met()) continue;
    if (absl::IsPermissionDenied(peer->gone())) {
      return peer->About(
          absl::StatusCode::kFailedPrecondition,
          "does not have this group's key: the store holds entries of an earlier group "
          "of the same name, or the ranks were given different secrets");
    }
    if (!peer->gone().ok() && peer->refused_for() > kDialPatience) {
      return peer->About(absl::StatusCode::kUnavailable,
                         absl::StrCat("cannot be reached: ", peer->gone().message(),
                                      "; has it ended, is its address correct, and do "
                                      "firewalls allow the connection?"));
    }
    if (now >= deadline) {
      return peer->About(absl::StatusCode::kDeadlineExceeded,
                         "has not connected in time; are both addresses correct, and do "
                         "firewalls allow the connection?");
    }
  }
  return absl::OkStatus();
}

absl::Status TcpWire::Connect(const std::vector<std::optional<TcpCard>>& cards,
                              const SecretKey& key, absl::Duration timeout) {
  const absl::Duration deadline = clock_.Now() + timeout;
  key_ = key;
  for (size_t rank = 0; rank < cards.size(); ++rank) {
    if (cards[rank].has_value()) {
      AddPeer(*cards[rank]);
    } else {
      AddNobody();
    }
  }
  absl::Status status = ConnectUntil(deadline);
  // Ranks that have met would otherwise learn only that this rank left.
  if (!status.ok()) Report(status);
  return status;
}

absl::Status TcpWire::ConnectUntil(absl::Duration deadline) {
  const auto is_missing = [](const auto& peer) {
    return peer != nullptr && !peer->has_met();
  };
  while (std::any_of(peers().begin(), peers().end(), is_missing)) {
    const absl::Duration now = clock_.Now();
    SYNCLINE_RETURN_IF_ERROR(CheckMissing(now, deadline));
    for (const auto& peer : peers()) {
      if (!is_missing(peer) || peer->rank() > options_.rank) continue;
      if (peer->MayDial(now, kDialAgain)) SYNCLINE_RETURN_IF_ERROR(Dial(*peer));
    }
    SYNCLINE_RETURN_IF_ERROR(TendMeeting());
    transport_->Wait(kNap);
  }
  return absl::OkStatus();
}

absl::Status TcpWire::TendMeeting() {
  const absl::Duration now = clock_.Now();
  if (now - tended_ >= tend_every()) {
    tended_ = now;
    for (const auto& peer : peers()) {
      if (peer != nullptr && peer->has_met()) peer->Send({.kind = TcpWireMessage::kBeat});
    }
  }
  Progress();
  absl::Status status = CheckReports();
  for (const auto& peer : peers()) {
    if (peer != nullptr && peer->has_met()) status.Update(peer->CheckThere());
  }
  return status;
}

void TcpWire::Settle() {
  const absl::Duration until = clock_.Now() + options_.failure_timeout;
  const auto is_waiting = [](const auto& peer) {
    return peer != nullptr && peer->HasUnacknowledged();
  };
  Progress();
  while (clock_.Now() < until &&
         std::any_of(peers().begin(), peers().end(), is_waiting)) {
    transport_->Wait(absl::Milliseconds(1));
    Progress();
  }
}

}  // namespace syncline::collective
