// The part of a wire that does not depend on the transport, for peers behind endpoints of
// comm/transport: lanes, heartbeats, goodbyes, and messages about the current operation
// and about failures. TcpWire (tcp_wire.h) connects the peers over TCP; tests/group_sim
// does so in simulated time.
//
// Thread safety: one thread at a time, except Wake().
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "comm/base/buffer.h"
#include "comm/base/env.h"
#include "comm/collective/group/tcp_peer.h"
#include "comm/collective/group/wire.h"

namespace syncline::collective {

class PeerWire : public Wire {
 public:
  const std::vector<Lane*>& lanes() override { return lanes_[0]; }
  const std::vector<Lane*>& direct_lanes() override { return lanes_[1]; }
  void Progress() override;
  bool HasUnsent() const override { return touched_; }
  void Tend() override;
  absl::Duration tend_every() const override {
    return failure_timeout_ / kBeatsPerTimeout;
  }
  void Enter(const CallHeader&) override {}
  std::vector<int> Behind(uint64_t sequence) const override;
  void PrepareToSleep() override {}
  void Stay() override {}
  absl::Status Check(const std::vector<int>& ranks, const CallHeader* header) override;
  void Report(const absl::Status& status) override;

 protected:
  // `clock` must outlive the wire.
  PeerWire(int rank, absl::Duration failure_timeout, const Clock& clock);

  // Sends and receives as much as possible without blocking.
  virtual void Pump() = 0;

  // Add the next rank, starting with 0. AddNobody: for this rank, and for ranks that are
  // reached by another wire.
  TcpPeer& AddPeer(const TcpCard& card);
  void AddNobody();
  // Indexed by rank; null where there is no peer.
  const std::vector<std::unique_ptr<TcpPeer>>& peers() const { return peers_; }
  // Returns the first failure that another rank reported.
  absl::Status CheckReports() const;
  void SendToAll(const TcpWireMessage& message, const Payload& payload = {});

 private:
  void SayWhereThisIs(const CallHeader& header);

  const int rank_;
  const absl::Duration failure_timeout_;
  const Clock& clock_;
  BufferPool pool_{size_t{64} << 20};
  std::vector<std::unique_ptr<TcpPeer>> peers_;
  std::vector<Lane*> lanes_[2];
  bool touched_ = false;  // a lane has something to send
  uint64_t told_ = 0;     // last operation announced to the others
  bool reported_ = false;
};

}  // namespace syncline::collective
