// The wire of tests/group_sim. Ranks exchange the product's messages (peer_wire.h) over
// an in-process network in simulated time. Each pair and direction has a transport of its
// own, because such a transport has one direction only.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/base/env.h"
#include "comm/base/event_queue.h"
#include "comm/collective/group/peer_wire.h"
#include "comm/transport/inproc/inproc.h"

namespace syncline::group_sim {

// Planted faults, which the simulation must find.
enum class Fault {
  kNone,
  kDeaf,     // a rank never asks whether the others are alive
  kBlame,    // a rank names another rank than the one that is gone
  kHasty,    // a rank that stands still for a third of F is considered dead
  kCorrupt,  // a bit of a message changes on its way, and no checksum is compared
  kLate,     // data that arrives after the end is still written
};

class EventClock final : public Clock {
 public:
  explicit EventClock(const EventQueue& events) : events_(events) {}
  absl::Duration Now() const override { return events_.now(); }

 private:
  const EventQueue& events_;
};

class SimWire final : public collective::PeerWire {
 public:
  struct Options {
    int rank = 0;
    int ranks = 1;
    absl::Duration failure_timeout = {};
    Fault fault = Fault::kNone;
    // Called when anything has arrived.
    std::function<void()> arrived = {};
  };

  SimWire(const Options& options, InprocNetwork& network, const EventClock& clock);
  ~SimWire() override;

  // Connects to all other wires of the group.
  void Connect(const std::vector<SimWire*>& all);
  // Returns the address for messages of `peer`; empty for this rank.
  const std::string& address(int peer) const;
  // Tells all peers that this rank leaves.
  void Leave();

  void Sleep(absl::Duration) override {}
  void Wake() override {}
  absl::Status Check(const std::vector<int>& ranks,
                     const collective::CallHeader* header) override;

 private:
  class Inlet;

  // Does nothing, because events deliver the messages.
  void Pump() override {}

  const Options options_;
  const EventClock& clock_;
  std::vector<std::unique_ptr<Inlet>> inlets_;  // by rank; null: this one
  std::vector<std::unique_ptr<Transport>> transports_;
  const std::string nowhere_;
};

}  // namespace syncline::group_sim
