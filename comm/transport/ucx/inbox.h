// Puts messages back into the order in which each link sent them. A message is announced
// when its header arrives. It is settled when its payload has arrived or was refused. It
// is handed out after everything that its link sent before.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <unordered_map>

#include "comm/transport/ucx/messages.h"

namespace syncline {

// One message that is arriving.
struct Arrival {
  explicit Arrival(ByteView wire_header) : wire(wire_header) {}

  enum class State { kArriving, kWhole, kDropped };

  WireHeader wire;
  Buffer payload;
  Landed borrowed;  // used instead of `payload` if the body has an owner
  State state = State::kArriving;
};

class Inbox {
 public:
  // Returns false, and refuses the message, if its link has sent this number before or if
  // the number is too far ahead.
  bool Announce(const std::shared_ptr<Arrival>& arrival);

  // Tells that the state of `arrival` is final.
  void Settle(const Arrival& arrival);

  // Returns the next complete message, or null if there is none.
  std::shared_ptr<Arrival> Next();

  bool empty() const { return ready_.empty(); }

 private:
  struct Link {
    uint64_t next = 0;  // number of the first message that was not handed out
    std::list<uint64_t>::iterator use;  // its place in uses_
    std::map<uint64_t, std::shared_ptr<Arrival>> arrivals;
  };

  Link& LinkOf(uint64_t name);

  std::unordered_map<uint64_t, Link> links_;
  std::list<uint64_t> uses_;  // all links, the most recently used last
  std::deque<std::shared_ptr<Arrival>> ready_;
};

}  // namespace syncline
