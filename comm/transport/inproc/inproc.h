// A network inside one thread and in simulated time. Every delivery, completion and
// failure is an event of an EventQueue, so a test or a simulation with the same seed
// always has the same run.
//
// The queue is the clock and the scheduler. Running its events (EventQueue::RunNext, or
// Progress and Wait of any transport) runs the callbacks of all transports. Progress()
// runs what is due now. Wait(timeout) advances the time to the next event, but by at most
// `timeout`.
//
// Without faults every endpoint delivers all messages, in order. Payloads are copied at
// Send, or lent (InprocOptions::smallest_loan). If a rate is set, messages from one
// process to another follow each other at that rate, by class and in pieces as in tcp/
// (send_queue.h, send_window.h), and both ends see bytes move (Endpoint::send_state,
// Endpoint::received_bytes). Processes may also be put on hosts with cables, which all
// connections of a host share (host_cables.h). Otherwise a message takes no time except
// its delay.
//
// Thread safety: none, except Wake(). The EventQueue must outlive the network, and the
// network its transports. An endpoint may outlive its transport.
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
#include "comm/transport/inproc/host_cables.h"
#include "comm/transport/send_queue.h"
#include "comm/transport/transport.h"

namespace syncline {

enum class Reorder { kNo, kYes };

// Faults that may happen to a message. Probabilities are per message and independent.
struct Faults {
  // The message never arrives. Its send still completes with OK, as with a crashed peer.
  double drop = 0;
  double duplicate = 0;  // the message arrives again, with a delay of its own
  absl::Duration min_delay = absl::Microseconds(10);
  absl::Duration max_delay = absl::Microseconds(10);
  // kYes: each message has its own random delay, so messages may overtake. kNo: messages
  // arrive in order.
  Reorder reorder = Reorder::kNo;
};

struct InprocOptions {
  uint64_t seed = 1;
  Faults faults;
  // Time from Kill until the peers' endpoints fail. InfiniteDuration: they never fail, as
  // with a hung host.
  absl::Duration failure_delay = absl::Milliseconds(1);
  // Payloads of at least this size are lent if no rate is set, as ucx/ lends them within
  // a host: Receiver::OnBorrowed gets them in place. If the payload can be lent
  // (lent_parts.h), this is the sender's own memory, and the send completes when the last
  // copy of the slice or the endpoint is gone. Otherwise a copy is lent. 0: nothing is
  // lent.
  size_t smallest_loan = 0;
};

class InprocNetwork {
 public:
  InprocNetwork(EventQueue& events, InprocOptions options);
  ~InprocNetwork();

  InprocNetwork(const InprocNetwork&) = delete;
  InprocNetwork& operator=(const InprocNetwork&) = delete;

  // `receiver` must outlive the transport.
  std::unique_ptr<Transport> CreateTransport(Receiver& receiver);

  // Ends the process behind `address`: it receives nothing more, its messages go nowhere,
  // and none of its callbacks runs. Endpoints to it fail after failure_delay. A restarted
  // process is a new transport.
  void Kill(const std::string& address);

  // Drops all messages between the two, in both directions, until Heal.
  void Cut(const std::string& a, const std::string& b);
  void Heal(const std::string& a, const std::string& b);

  // Limits the rate from one process to the other. 0: no limit, as within a host.
  void SetRate(const std::string& from, const std::string& to, double bytes_per_second);

  // Puts a process on a host. Its messages to other hosts then cross both hosts' cables,
  // if these have limits; SetRate has no effect between such hosts. Call it before the
  // process sends anything. By default a process is on a host without a cable.
  void PutOn(const std::string& address, const std::string& host);
  // The cables of the hosts, also for flows that are not of this network.
  HostCables& cables() { return cables_; }
  const HostCables& cables() const { return cables_; }

  // Makes the endpoints from `from` to `to` fail. What has not arrived is lost at once,
  // and their owner is told after failure_delay. The other direction is not affected.
  void Break(const std::string& from, const std::string& to);

  // Takes effect from the next message on.
  void set_faults(const Faults& faults) { options_.faults = faults; }

 private:
  class Node;
  class Connection;
  struct Link;
  struct Pipe;

  // The message of one Send.
  struct Parcel;
  // The time in which bytes cross a pipe, and whether they are lost.
  struct Transit;

  void Leave(const std::string& address);
  // Starts the newest send of the link. If it gets neither a transit nor a place in the
  // queue, the message goes nowhere.
  void Carry(const std::shared_ptr<Link>& link, const Traffic& traffic, ByteView header,
             const Payload& payload);
  // Puts as many pieces on the pipe as may be on their way at once.
  void Feed(const std::shared_ptr<Link>& link);
  void Cross(const std::shared_ptr<Link>& link, SendQueue::Piece& piece,
             const std::shared_ptr<Transit>& transit);
  bool HasCables(const Link& link) const;
  void PutInFlow(const std::shared_ptr<Link>& link,
                 std::shared_ptr<SendQueue::Piece> piece);
  void ArriveInFlow(const std::shared_ptr<Link>& link, size_t bytes);
  const std::string& HostOf(const std::string& address) const;
  bool IsWithinHost(const Link& link) const;
  // Lends the payload of the newest send of the link. The send completes when the last
  // copy of the slice is gone.
  Landed Lend(const std::shared_ptr<Link>& link, const Payload& payload);
  std::shared_ptr<Transit> Enter(Link& link, size_t bytes);
  void Complete(const std::shared_ptr<Link>& link, uint64_t send);
  // Ends the link: what has not crossed the pipe is lost, and all sends complete.
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
  std::map<std::string, Node*> alive_;  // ordered, so that every run has the same order
  std::set<std::string> killed_;
  std::set<std::pair<std::string, std::string>> cuts_;
  std::map<std::pair<std::string, std::string>, Pipe> pipes_;  // from, to
  HostCables cables_;
  std::map<std::string, std::string> hosts_;  // by address
  // Loans may outlive the network; they check this first.
  std::shared_ptr<const bool> is_here_ = std::make_shared<bool>(true);
};

}  // namespace syncline
