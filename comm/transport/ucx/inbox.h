// Puts arrivals back into the order in which each link sent them. An arrival is announced
// when its header is seen, settled when its payload is there or was refused, and handed
// out when all that its link sent before it was.
//
// Thread safety: none.
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
  Landed borrowed;  // instead of `payload`, when its body has an owner
  State state = State::kArriving;
};

class Inbox {
 public:
  // Refused (false): a message that its link sent before, or one too far ahead.
  bool Announce(const std::shared_ptr<Arrival>& arrival);

  // The state of `arrival` is final now.
  void Settle(const Arrival& arrival);

  // The next whole message; null when there is none.
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
  std::list<uint64_t> uses_;  // all links, the one used last at the end
  std::deque<std::shared_ptr<Arrival>> ready_;
};

}  // namespace syncline
