#include "comm/collective/group/peer_wire.h"

#include <string>
#include <utility>

namespace syncline::collective {

PeerWire::PeerWire(int rank, absl::Duration failure_timeout, const Clock& clock)
    : rank_(rank), failure_timeout_(failure_timeout), clock_(clock) {}

void PeerWire::AddNobody() {
  peers_.push_back(nullptr);
  for (auto& lanes : lanes_) lanes.push_back(nullptr);
}

TcpPeer& PeerWire::AddPeer(const TcpCard& card) {
  AddNobody();
  peers_.back() = std::make_unique<TcpPeer>(
      TcpPeerOptions{.rank = static_cast<int>(peers_.size()) - 1,
                     .card = card,
                     .failure_timeout = failure_timeout_,
                     .touched = &touched_},
      pool_);
  for (size_t k = 0; k < 2; ++k) lanes_[k].back() = &peers_.back()->lane(k);
  return *peers_.back();
}

void PeerWire::SendToAll(const TcpWireMessage& message, const Payload& payload) {
  for (const auto& peer : peers_) {
    if (peer != nullptr) peer->Send(message, payload);
  }
}

void PeerWire::Progress() {
  if (std::exchange(touched_, false)) {
    for (const auto& peer : peers_) {
      if (peer != nullptr) peer->Flush();
    }
  }
  Pump();
}

void PeerWire::Tend() {
  SendToAll({.kind = TcpWireMessage::kBeat});
  Progress();
}

std::vector<int> PeerWire::Behind(uint64_t sequence) const {
  std::vector<int> ranks;
  for (const auto& peer : peers_) {
    if (peer == nullptr) continue;
    if (!peer->entered() || peer->entered()->sequence < sequence) {
      ranks.push_back(peer->rank());
    }
  }
  return ranks;
}

void PeerWire::SayWhereThisIs(const CallHeader& header) {
  if (told_ == header.sequence) return;
  told_ = header.sequence;
  const Buffer copy =
      Buffer::CopyOf({reinterpret_cast<const std::byte*>(&header), sizeof header});
  SendToAll({.kind = TcpWireMessage::kEntered}, {Slice::Of(copy)});
  Progress();
}

absl::Status PeerWire::CheckReports() const {
  for (const auto& peer : peers_) {
    if (peer != nullptr && !peer->reported().ok()) {
      return ReportedBy(peer->rank(), rank_, peer->reported());
    }
  }
  return absl::OkStatus();
}

// A failure that another rank reported takes precedence over what this rank would find.
// It came first, and a rank that waits for a survivor must not blame the survivor.
absl::Status PeerWire::Check(const std::vector<int>& ranks, const CallHeader* header) {
  if (header != nullptr) SayWhereThisIs(*header);
  absl::Status status = CheckReports();
  const absl::Duration now = clock_.Now();
  for (size_t i = 0; i < ranks.size() && status.ok(); ++i) {
    TcpPeer* const peer = peers_[static_cast<size_t>(ranks[i])].get();
    if (peer == nullptr) continue;
    if (header != nullptr && peer->entered()) {
      status = CompareEntered(ranks[i], *peer->entered(), *header);
    }
    if (status.ok()) status = peer->CheckAlive(now);
  }
  return status;
}

void PeerWire::Report(const absl::Status& status) {
  if (std::exchange(reported_, true)) return;
  const std::string words(status.message().substr(0, kLongestReport));
  const Buffer copy =
      Buffer::CopyOf({reinterpret_cast<const std::byte*>(words.data()), words.size()});
  SendToAll({.kind = TcpWireMessage::kFailed,
             .code = static_cast<uint8_t>(status.code()),
             .rank = FailedRank(status).value_or(-1)},
            {Slice::Of(copy)});
  Progress();
}

}  // namespace syncline::collective
