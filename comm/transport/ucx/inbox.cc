#include "comm/transport/ucx/inbox.h"

#include <utility>

#include "comm/base/limits.h"

namespace syncline {
namespace {

// Links are never closed, since senders do not say when they leave. Twice the number of
// possible peers leaves room for those that left.
constexpr size_t kMaxLinks = 2 * (kMaxWorkers + kMaxServers * kMaxEngineThreads / 8);

// A peer that sends this much ahead of a message that never comes is broken or hostile.
constexpr size_t kMaxArrivalsPerLink = 4096;

}  // namespace

bool Inbox::Announce(const std::shared_ptr<Arrival>& arrival) {
  const LinkPrefix prefix = arrival->wire.prefix();
  Link& link = LinkOf(prefix.link);
  if (prefix.number < link.next || prefix.number - link.next >= kMaxArrivalsPerLink) {
    return false;
  }
  return link.arrivals.emplace(prefix.number, arrival).second;
}

void Inbox::Settle(const Arrival& arrival) {
  const auto found = links_.find(arrival.wire.prefix().link);
  if (found == links_.end()) return;
  Link& link = found->second;
  for (auto first = link.arrivals.begin();
       first != link.arrivals.end() && first->first == link.next &&
       first->second->state != Arrival::State::kArriving;
       first = link.arrivals.erase(first)) {
    if (first->second->state == Arrival::State::kWhole) ready_.push_back(first->second);
    ++link.next;
  }
}

std::shared_ptr<Arrival> Inbox::Next() {
  if (ready_.empty()) return nullptr;
  std::shared_ptr<Arrival> arrival = std::move(ready_.front());
  ready_.pop_front();
  return arrival;
}

Inbox::Link& Inbox::LinkOf(uint64_t name) {
  const auto found = links_.find(name);
  if (found != links_.end()) {
    uses_.splice(uses_.end(), uses_, found->second.use);
    return found->second;
  }
  if (links_.size() >= kMaxLinks) {
    links_.erase(uses_.front());
    uses_.pop_front();
  }
  Link& link = links_[name];
  link.use = uses_.insert(uses_.end(), name);
  return link;
}

}  // namespace syncline
