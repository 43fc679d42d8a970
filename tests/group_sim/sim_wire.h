// The wire of tests/group_sim: what ranks say to each other is the product's (peer_wire.h),
// over an in-process network in simulated time. One transport for each pair and direction,
// since those have one direction only.
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

// What is broken on purpose, to see that it is found.
enum class Fault {
  kNone,
  kDeaf,     // a rank never asks whether the others are well
  kBlame,    // a rank names another one than the one that is gone
  kHasty,    // a rank that stands still for a third of F is called dead
  kCorrupt,  // a bit of a message changes on its way, and nobody compares checksums
  kLate,     // what arrives after the end is still written
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

  // With all other wires of the group, which have connected or will.
  void Connect(const std::vector<SimWire*>& all);
  // Where what `peer` sends arrives; empty for this rank.
  const std::string& address(int peer) const;
  // Says goodbye.
  void Leave();

  void Sleep(absl::Duration) override {}
  void Wake() override {}
  absl::Status Check(const std::vector<int>& ranks,
                     const collective::CallHeader* header) override;

 private:
  class Inlet;

  // Events deliver, not those who look.
  void Pump() override {}

  const Options options_;
  const EventClock& clock_;
  std::vector<std::unique_ptr<Inlet>> inlets_;  // by rank; null: this one
  std::vector<std::unique_ptr<Transport>> transports_;
  const std::string nowhere_;
};

}  // namespace syncline::group_sim
