#include "tests/group_sim/sim_wire.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace syncline::group_sim {

using collective::TcpWireMessage;

// Receives for a peer: reports arrivals, and carries out the planted fault.
class SimWire::Inlet final : public Receiver {
 public:
  Inlet(Receiver& peer, const Options& options) : peer_(peer), options_(options) {}

  absl::StatusOr<Buffer> Allocate(ByteView header, size_t payload_bytes) override {
    return peer_.Allocate(header, payload_bytes);
  }

  void OnMessage(ByteView header, Buffer payload) override {
    TcpWireMessage message;
    std::memcpy(&message, header.data(), sizeof message);
    const bool has_values = message.kind == TcpWireMessage::kBytes &&
                            payload.size() > sizeof(collective::CallHeader);
    if (options_.fault == Fault::kCorrupt && has_values && ++messages_ % 8 == 0) {
      payload.data()[sizeof(collective::CallHeader)] ^= std::byte{1};
    }
    peer_.OnMessage(header, std::move(payload));
    options_.arrived();
  }

 private:
  Receiver& peer_;
  const Options& options_;
  int messages_ = 0;
};

SimWire::SimWire(const Options& options, InprocNetwork& network, const EventClock& clock)
    : PeerWire(options.rank,
               options.fault == Fault::kHasty ? options.failure_timeout / 3
                                              : options.failure_timeout,
               clock),
      options_(options),
      clock_(clock) {
  for (int rank = 0; rank < options.ranks; ++rank) {
    inlets_.push_back(nullptr);
    transports_.push_back(nullptr);
    if (rank == options.rank) {
      AddNobody();
      continue;
    }
    inlets_.back() =
        std::make_unique<Inlet>(AddPeer({.address = "a simulated host"}), options_);
    transports_.back() = network.CreateTransport(*inlets_.back());
  }
}

SimWire::~SimWire() {
  for (const auto& peer : peers()) {
    if (peer != nullptr) peer->Close();
  }
}

const std::string& SimWire::address(int peer) const {
  const auto& transport = transports_[static_cast<size_t>(peer)];
  return transport == nullptr ? nowhere_ : transport->address();
}

void SimWire::Connect(const std::vector<SimWire*>& all) {
  for (const auto& peer : peers()) {
    if (peer == nullptr) continue;
    const auto rank = static_cast<size_t>(peer->rank());
    const std::string& to = all[rank]->address(options_.rank);
    peer->Dialled(transports_[rank]->Connect(to, peer->Take(nullptr)).value(),
                  clock_.Now());
  }
}

void SimWire::Leave() { SendToAll({.kind = TcpWireMessage::kLeft}); }

absl::Status SimWire::Check(const std::vector<int>& ranks,
                            const collective::CallHeader* header) {
  if (options_.fault == Fault::kDeaf) return absl::OkStatus();
  absl::Status status = PeerWire::Check(ranks, header);
  const auto failed = collective::FailedRank(status);
  if (options_.fault == Fault::kBlame && failed.has_value()) {
    collective::SetFailedRank(status, (*failed + 1) % options_.ranks);
  }
  return status;
}

}  // namespace syncline::group_sim
