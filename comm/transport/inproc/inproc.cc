#include "comm/transport/inproc/inproc.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "comm/base/check.h"
#include "comm/base/limits.h"

namespace syncline {
namespace {

constexpr char kAddressPrefix[] = "inproc:";

std::pair<std::string, std::string> Unordered(const std::string& a,
                                              const std::string& b) {
  return a < b ? std::make_pair(a, b) : std::make_pair(b, a);
}

}  // namespace

struct InprocNetwork::Parcel {
  Buffer header;
  Buffer payload;
};

// The state of one endpoint, shared with the events that still refer to it.
struct InprocNetwork::Link {
  std::string from;
  std::string to;
  std::function<void(const absl::Status&)> on_failure;
  absl::Duration last_arrival = absl::ZeroDuration();
  absl::Status refusal;  // not OK once closed or failed
  std::map<uint64_t, SendDone> pending;
  uint64_t next_send = 0;
  SendState state;
};

class InprocNetwork::Connection : public Endpoint {
 public:
  Connection(InprocNetwork& network, std::shared_ptr<Link> link)
      : network_(network), link_(std::move(link)) {}

  ~Connection() override {
    link_->on_failure = nullptr;
    link_->refusal = absl::CancelledError("endpoint was closed");
  }

  void Send(ByteView header, Payload payload, SendDone done) override {
    SYNCLINE_CHECK(header.size() <= kMessageHeaderBytes);
    const uint64_t send = link_->next_send++;
    const uint64_t bytes = header.size() + PayloadBytes(payload);
    link_->state.accepted_bytes += bytes;
    link_->pending[send] = [&state = link_->state, bytes,
                            done = std::move(done)](const absl::Status& status) {
      state.gone_bytes += bytes;
      if (done) done(status);
    };
    if (link_->refusal.ok()) network_.Carry(link_, header, payload);
    // Later, never inline; what closing or failing decides until then is what the caller
    // hears.
    network_.events_.After(absl::ZeroDuration(),
                           [link = link_, send, killed = &network_.killed_] {
                             const auto found = link->pending.find(send);
                             const SendDone complete = std::move(found->second);
                             link->pending.erase(found);
                             if (!killed->contains(link->from)) complete(link->refusal);
                           });
  }

  SendState send_state() const override { return link_->state; }
  bool IsLocal() const override { return true; }
  std::string Describe() const override { return "inproc"; }

 private:
  InprocNetwork& network_;
  std::shared_ptr<Link> link_;
};

class InprocNetwork::Node : public Transport {
 public:
  Node(InprocNetwork& network, std::string address, Receiver& receiver)
      : network_(network), address_(std::move(address)), receiver_(receiver) {
    network_.alive_[address_] = this;
  }

  ~Node() override {
    network_.Leave(address_);
    if (network_.killed_.contains(address_)) return;
    for (const std::weak_ptr<Link>& weak : links_) {
      const std::shared_ptr<Link> link = weak.lock();
      if (link != nullptr) link->refusal = absl::CancelledError("transport was closed");
    }
  }

  const std::string& address() const override { return address_; }

  absl::StatusOr<std::unique_ptr<Endpoint>> Connect(const std::string& address,
                                                    ConnectOptions options) override {
    if (!absl::StartsWith(address, kAddressPrefix)) {
      return absl::InvalidArgumentError("not an address of this network");
    }
    auto link = std::make_shared<Link>();
    link->from = address_;
    link->to = address;
    link->on_failure = std::move(options.on_failure);
    links_.push_back(link);
    if (!network_.alive_.contains(address)) {
      network_.Fail(link, absl::UnavailableError(absl::StrCat(address, " is gone")));
    }
    return std::make_unique<Connection>(network_, std::move(link));
  }

  int Progress() override { return network_.events_.RunUntil(network_.events_.now()); }

  void Wait(absl::Duration timeout) override {
    if (woken_.exchange(false)) return;
    const absl::Duration deadline = network_.events_.now() + timeout;
    if (network_.events_.next_time() <= deadline) {
      network_.events_.RunNext();
    } else if (timeout != absl::InfiniteDuration()) {
      network_.events_.RunUntil(deadline);
    }
  }

  void Wake() override { woken_ = true; }

 private:
  friend class InprocNetwork;

  InprocNetwork& network_;
  const std::string address_;
  Receiver& receiver_;
  std::vector<std::weak_ptr<Link>> links_;
  std::atomic<bool> woken_ = false;
};

InprocNetwork::InprocNetwork(EventQueue& events, InprocOptions options)
    : events_(events), options_(options), random_(options.seed) {}

InprocNetwork::~InprocNetwork() { SYNCLINE_CHECK(alive_.empty()); }

std::unique_ptr<Transport> InprocNetwork::CreateTransport(Receiver& receiver) {
  return std::make_unique<Node>(*this, absl::StrCat(kAddressPrefix, next_node_++),
                                receiver);
}

void InprocNetwork::Kill(const std::string& address) {
  killed_.insert(address);
  Leave(address);
}

void InprocNetwork::Leave(const std::string& address) {
  if (alive_.erase(address) == 0) return;
  for (const auto& [name, node] : alive_) {
    for (const std::weak_ptr<Link>& weak : node->links_) {
      const std::shared_ptr<Link> link = weak.lock();
      if (link == nullptr || link->to != address) continue;
      Fail(link, absl::UnavailableError(absl::StrCat(address, " is gone")));
    }
  }
}

void InprocNetwork::Cut(const std::string& a, const std::string& b) {
  cuts_.insert(Unordered(a, b));
}

void InprocNetwork::Heal(const std::string& a, const std::string& b) {
  cuts_.erase(Unordered(a, b));
}

bool InprocNetwork::IsCut(const std::string& a, const std::string& b) const {
  return cuts_.contains(Unordered(a, b));
}

// Always draws, so that one message's luck does not shift that of the next when a
// probability is zero.
bool InprocNetwork::Happens(double probability) {
  return std::ldexp(static_cast<double>(random_() >> 11), -53) < probability;
}

absl::Duration InprocNetwork::RandomDelay() {
  const double fraction = std::ldexp(static_cast<double>(random_() >> 11), -53);
  const Faults& faults = options_.faults;
  return faults.min_delay + (faults.max_delay - faults.min_delay) * fraction;
}

void InprocNetwork::Carry(const std::shared_ptr<Link>& link, ByteView header,
                          const Payload& payload) {
  if (killed_.contains(link->from)) return;
  const bool dropped = Happens(options_.faults.drop);
  const bool duplicated = Happens(options_.faults.duplicate);
  if (dropped || IsCut(link->from, link->to)) return;
  auto parcel =
      std::make_shared<const Parcel>(Parcel{Buffer::CopyOf(header), Gather(payload)});
  Schedule(link, parcel);
  if (duplicated) Schedule(link, parcel);
}

void InprocNetwork::Schedule(const std::shared_ptr<Link>& link,
                             std::shared_ptr<const Parcel> parcel) {
  absl::Duration arrival = events_.now() + RandomDelay();
  if (options_.faults.reorder == Reorder::kNo) {
    arrival = std::max(arrival, link->last_arrival);
    link->last_arrival = arrival;
  }
  events_.After(arrival - events_.now(),
                [this, link, parcel = std::move(parcel)] { Deliver(*link, *parcel); });
}

void InprocNetwork::Deliver(const Link& link, const Parcel& parcel) {
  const auto found = alive_.find(link.to);
  if (found == alive_.end() || IsCut(link.from, link.to)) return;
  Receiver& receiver = found->second->receiver_;
  const ByteView header = parcel.header.view();
  absl::StatusOr<Buffer> landing = receiver.Allocate(header, parcel.payload.size());
  if (!landing.ok()) return;
  SYNCLINE_CHECK(landing->size() >= parcel.payload.size());
  std::copy_n(parcel.payload.data(), parcel.payload.size(), landing->data());
  receiver.OnMessage(header, *std::move(landing));
}

void InprocNetwork::Fail(const std::shared_ptr<Link>& link, const absl::Status& status) {
  events_.After(options_.failure_delay, [this, link, status] {
    if (!link->refusal.ok() || killed_.contains(link->from)) return;
    link->refusal = status;
    if (link->on_failure) std::exchange(link->on_failure, nullptr)(status);
  });
}

}  // namespace syncline
