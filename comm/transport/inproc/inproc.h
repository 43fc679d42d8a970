// A network inside one thread and in simulated time: every delivery, completion and
// failure is an event of an EventQueue, so a test or a simulation sees the same run for
// the same seed, always.
//
// The queue is the clock and the scheduler: whoever runs its events (EventQueue::RunNext,
// or Progress and Wait of any of the transports) runs the callbacks of all transports.
// Progress() runs what is due now; Wait(timeout) moves the time on to the next event, at
// most by `timeout`.
//
// Without faults every endpoint delivers everything, in order. Payloads are copied at
// Send, or lent (InprocOptions::smallest_loan). Where a rate is set, messages of one process
// to another follow each other at that rate, by class and in pieces as those of tcp/
// (send_queue.h, send_window.h), and both see them move (Endpoint::send_state,
// Endpoint::received_bytes); otherwise they take no time but their delay.
//
// Thread safety: none, but Wake(). The EventQueue outlives the network, the network its
// transports, and an endpoint may outlive its transport.
//
//   EventQueue events;
//   InprocNetwork network(events, {.seed = 7, .faults = {.drop = 0.01}});
//   auto server = network.CreateTransport(receiver);
//   auto worker = network.CreateTransport(other_receiver);
//   auto to_server = worker->Connect(server->address(), {});
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "comm/base/event_queue.h"
#include "comm/transport/send_queue.h"
#include "comm/transport/transport.h"

namespace syncline {

enum class Reorder { kNo, kYes };

// What may happen to a message. Probabilities are per message and independent.
struct Faults {
  double drop =
      0;  // never arrives; its send completes OK all the same, as with a crashed peer
  double duplicate = 0;  // arrives a second time, with a delay of its own
  absl::Duration min_delay = absl::Microseconds(10);
  absl::Duration max_delay = absl::Microseconds(10);
  // kYes: a message keeps its own random delay, and so may overtake. kNo: first in, first
  // out.
  Reorder reorder = Reorder::kNo;
};

struct InprocOptions {
  uint64_t seed = 1;
  Faults faults;
  // How long after Kill the peers' endpoints fail; InfiniteDuration: never, like a hung
  // host.
  absl::Duration failure_delay = absl::Milliseconds(1);
  // Payloads of so many bytes or more are lent where no rate is set, as ucx/ lends them
  // within a host: Receiver::OnBorrowed gets them in place. What can be lent (lent_parts.h)
  // is the sender's own memory, and its send completes when the last copy of the slice is
  // gone, or the endpoint; of anything else a copy is lent. 0: nothing is lent.
  size_t smallest_loan = 0;
};

class InprocNetwork {
 public:
  InprocNetwork(EventQueue& events, InprocOptions options);
  ~InprocNetwork();

  InprocNetwork(const InprocNetwork&) = delete;
  InprocNetwork& operator=(const InprocNetwork&) = delete;

  // `receiver` outlives the transport.
  std::unique_ptr<Transport> CreateTransport(Receiver& receiver);

  // The process behind `address` is gone: it receives nothing more, what it sends goes
  // nowhere, none of its callbacks runs, and endpoints to it fail after failure_delay. A
  // restart is a new transport.
  void Kill(const std::string& address);

  // Messages between the two are lost, in both directions, until Heal.
  void Cut(const std::string& a, const std::string& b);
  void Heal(const std::string& a, const std::string& b);

  // Bytes per second that go from one process to the other; 0: no limit, as within a host.
  void SetRate(const std::string& from, const std::string& to, double bytes_per_second);

  // The endpoints of `from` to `to` fail: what has not arrived is lost at once, and their
  // owner hears of it after failure_delay. The other direction goes on.
  void Break(const std::string& from, const std::string& to);

  // From the next message on.
  void set_faults(const Faults& faults) { options_.faults = faults; }

 private:
  class Node;
  class Connection;
  struct Link;
  struct Pipe;

  // What one Send put on its way.
  struct Parcel;
  // When it crosses the pipe, and whether anything comes out of that.
  struct Transit;

  void Leave(const std::string& address);
  // What the newest send of the link is; it goes nowhere without a transit or a queue.
  void Carry(const std::shared_ptr<Link>& link, const Traffic& traffic, ByteView header,
             const Payload& payload);
  // Puts pieces on the cable, as many as belong on their way at once.
  void Feed(const std::shared_ptr<Link>& link);
  void Cross(const std::shared_ptr<Link>& link, SendQueue::Piece& piece,
             const std::shared_ptr<Transit>& transit);
  bool IsWithinHost(const Link& link) const;
  // The newest send of the link. It is returned where the last copy of the slice ends.
  Landed Lend(const std::shared_ptr<Link>& link, const Payload& payload);
  std::shared_ptr<Transit> Enter(Link& link, size_t bytes);
  void Complete(const std::shared_ptr<Link>& link, uint64_t send);
  // What has not crossed the pipe never does, and all sends complete.
  void Abandon(const std::shared_ptr<Link>& link);
  uint64_t Crossed(const std::string& from, const std::string& to);
  void Schedule(const std::shared_ptr<Link>& link, std::shared_ptr<const Parcel> parcel);
  void Deliver(const Link& link, const Parcel& parcel);
  void Fail(const std::shared_ptr<Link>& link, const absl::Status& status);
  bool IsCut(const std::string& a, const std::string& b) const;
  bool Happens(double probability);
  absl::Duration RandomDelay();

  EventQueue& events_;
  InprocOptions options_;
  std::mt19937_64 random_;
  uint64_t next_node_ = 1;
  std::map<std::string, Node*> alive_;  // ordered, like all that could decide an order
  std::set<std::string> killed_;
  std::set<std::pair<std::string, std::string>> cuts_;
  std::map<std::pair<std::string, std::string>, Pipe> pipes_;  // from, to
  // Loans outlive the network; they look here first.
  std::shared_ptr<const bool> is_here_ = std::make_shared<bool>(true);
};

}  // namespace syncline
