#include "comm/transport/inproc/inproc.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <optional>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "comm/base/check.h"
#include "comm/base/limits.h"
#include "comm/transport/inproc/link.h"
#include "comm/transport/lent_parts.h"

namespace syncline {
namespace {

constexpr char kAddressPrefix[] = "inproc:";

// Bytes that a kernel takes from a connection whose bandwidth is not known yet
// (TCP_NOTSENT_LOWAT, and what is encrypted at once).
constexpr size_t kKernelBytes = size_t{256} << 10;

std::pair<std::string, std::string> Unordered(const std::string& a,
                                              const std::string& b) {
  return a < b ? std::make_pair(a, b) : std::make_pair(b, a);
}

}  // namespace

class InprocNetwork::Connection : public Endpoint {
 public:
  Connection(InprocNetwork& network, std::shared_ptr<Link> link)
      : network_(network), link_(std::move(link)) {}

  ~Connection() override {
    link_->on_failure = nullptr;
    link_->refusal = absl::CancelledError("endpoint was closed");
    if (!link_->is_over) network_.Abandon(link_);
  }

  void Send(ByteView header, Payload payload, SendDone done) override {
    SendAs({}, header, std::move(payload), std::move(done));
  }

  void SendAs(const Traffic& traffic, ByteView header, Payload payload,
              SendDone done) override {
    SYNCLINE_CHECK(header.size() <= kMessageHeaderBytes);
    const uint64_t send = link_->next_send++;
    const uint64_t bytes = header.size() + PayloadBytes(payload);
    link_->state.accepted_bytes += bytes;
    Link::Pending& pending = link_->pending[send];
    pending.done = std::move(done);
    pending.bytes = bytes;
    if (link_->refusal.ok()) network_.Carry(link_, traffic, header, payload);
    if (pending.is_lent || pending.is_queued) return;
    const absl::Duration now = network_.events_.now();
    const absl::Duration end = pending.transit != nullptr ? pending.transit->end : now;
    // Completes later, never inside Send. If the endpoint is closed or fails before, the
    // caller gets that status.
    network_.events_.After(end - now, [network = &network_, link = link_, send] {
      network->Complete(link, send);
    });
  }

  SendState send_state() const override {
    SendState state = link_->StateAt(network_.events_.now());
    state.round_trip = 2 * network_.options_.faults.max_delay;
    return state;
  }
  uint64_t received_bytes() const override {
    return network_.Crossed(link_->to, link_->from);
  }
  bool IsLocal() const override { return network_.IsWithinHost(*link_); }
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
    for (const std::weak_ptr<Link>& weak : links_) {
      const std::shared_ptr<Link> link = weak.lock();
      if (link == nullptr) continue;
      if (!network_.killed_.contains(address_)) {
        link->refusal = absl::CancelledError("transport was closed");
        network_.Abandon(link);
      }
      link->is_over = true;
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
    : events_(events), options_(options), random_(options.seed), cables_(events) {}

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

// Always draws a random number, even if the probability is 0, so that the setting of one
// fault does not change the random numbers of others.
bool InprocNetwork::Happens(double probability) {
  return std::ldexp(static_cast<double>(random_() >> 11), -53) < probability;
}

absl::Duration InprocNetwork::RandomDelay() {
  const double fraction = std::ldexp(static_cast<double>(random_() >> 11), -53);
  const Faults& faults = options_.faults;
  return faults.min_delay + (faults.max_delay - faults.min_delay) * fraction;
}

void InprocNetwork::Carry(const std::shared_ptr<Link>& link, const Traffic& traffic,
                          ByteView header, const Payload& payload) {
  if (killed_.contains(link->from) || link->is_broken || link->is_over) return;
  const bool dropped = Happens(options_.faults.drop);
  const bool duplicated = Happens(options_.faults.duplicate);
  if (IsCut(link->from, link->to)) return;
  Link::Pending& pending = link->pending.at(link->next_send - 1);
  const int copies = dropped ? 0 : duplicated ? 2 : 1;
  // Messages in the queue must not be overtaken by later ones after the rate limit was
  // removed.
  if (!IsWithinHost(*link) || !link->queue.empty()) {
    pending.is_queued = true;
    const Buffer bytes = Gather(payload);
    const auto parcel = std::make_shared<Parcel>(
        Parcel{.header = Buffer::CopyOf(header), .payload = bytes});
    // Not called for messages that are dropped before they have crossed.
    SendDone crossed = [this, link = link.get(), send = link->next_send - 1, parcel,
                        copies](const absl::Status&) {
      for (int i = 0; i < copies; ++i) Schedule(link->shared_from_this(), parcel);
      Complete(link->shared_from_this(), send);
    };
    link->queue.Push(traffic, {header, {Slice::Of(bytes)}, std::move(crossed)},
                     events_.now());
    return Feed(link);
  }
  pending.transit = Enter(*link, header.size() + PayloadBytes(payload));
  if (copies == 0) return;
  Parcel sent = {.header = Buffer::CopyOf(header), .transit = pending.transit};
  const size_t smallest = options_.smallest_loan;
  if (smallest > 0 && PayloadBytes(payload) >= smallest) {
    sent.lent = Lend(link, payload);
  } else {
    sent.payload = Gather(payload);
  }
  const auto parcel = std::make_shared<const Parcel>(std::move(sent));
  for (int i = 0; i < copies; ++i) Schedule(link, parcel);
}

void InprocNetwork::Feed(const std::shared_ptr<Link>& link) {
  if (link->is_over || killed_.contains(link->from)) return;
  const absl::Duration now = events_.now();
  SendState in_hands = link->StateAt(now);
  in_hands.accepted_bytes -= link->queue.total_queued_bytes();
  in_hands.round_trip = 2 * options_.faults.max_delay;
  link->window.Observe(in_hands, now);
  const size_t kernel_bytes =
      link->window.bytes_per_second() > 0 ? kDefaultWindowBytes : kKernelBytes;
  while (!link->queue.empty()) {
    const bool has_room =
        link->window.HasRoomInHands(in_hands) && in_hands.waiting_bytes() < kernel_bytes;
    if (!has_room && !link->queue.has_control()) break;
    auto piece =
        std::make_shared<SendQueue::Piece>(link->queue.Pop(link->window.piece_bytes()));
    in_hands.accepted_bytes += piece->bytes();
    if (HasCables(*link)) {
      PutInFlow(link, std::move(piece));
      continue;
    }
    const auto transit = Enter(*link, piece->bytes());
    link->pieces.push_back(transit);
    events_.After(transit->end - now,
                  [this, link, piece, transit] { Cross(link, *piece, transit); });
  }
}

void InprocNetwork::Cross(const std::shared_ptr<Link>& link, SendQueue::Piece& piece,
                          const std::shared_ptr<Transit>& transit) {
  if (transit->is_lost) return;
  link->pieces.pop_front();
  link->state.gone_bytes += piece.bytes();
  if (piece.ended) piece.ended->done(absl::OkStatus());
  Feed(link);
}

// ---- Cables ----

void InprocNetwork::PutOn(const std::string& address, const std::string& host) {
  hosts_[address] = host;
}

const std::string& InprocNetwork::HostOf(const std::string& address) const {
  const auto found = hosts_.find(address);
  return found == hosts_.end() ? address : found->second;
}

bool InprocNetwork::HasCables(const Link& link) const {
  return cables_.AreLimited(HostOf(link.from), HostOf(link.to));
}

void InprocNetwork::PutInFlow(const std::shared_ptr<Link>& link,
                              std::shared_ptr<SendQueue::Piece> piece) {
  if (link->flow == nullptr) {
    // The link closes its flow before it is destroyed.
    link->flow = cables_.Open(HostOf(link->from), HostOf(link->to),
                              [this, link = link.get()](size_t bytes) {
                                ArriveInFlow(link->shared_from_this(), bytes);
                              });
  }
  const size_t bytes = Link::BytesInFlow(*piece);
  link->in_flow.push_back(std::move(piece));
  link->flow->Write(bytes);
}

void InprocNetwork::ArriveInFlow(const std::shared_ptr<Link>& link, size_t bytes) {
  pipes_[{link->from, link->to}].crossed += bytes;
  link->arrived_of_piece += bytes;
  while (!link->in_flow.empty()) {
    const std::shared_ptr<SendQueue::Piece> piece = link->in_flow.front();
    if (link->arrived_of_piece < Link::BytesInFlow(*piece)) break;
    link->arrived_of_piece -= Link::BytesInFlow(*piece);
    link->in_flow.pop_front();
    link->state.gone_bytes += piece->bytes();
    if (piece->ended) piece->ended->done(absl::OkStatus());
  }
  Feed(link);
}

bool InprocNetwork::IsWithinHost(const Link& link) const {
  if (HasCables(link)) return false;
  const auto pipe = pipes_.find({link.from, link.to});
  return pipe == pipes_.end() || pipe->second.bytes_per_second == 0;
}

Landed InprocNetwork::Lend(const std::shared_ptr<Link>& link, const Payload& payload) {
  const std::optional<LentParts> parts = PartsToLend(payload);
  if (!parts) return Slice::Of(Gather(payload));
  const uint64_t send = link->next_send - 1;
  link->pending[send].is_lent = true;
  const auto give_back = [this, is_here = std::weak_ptr(is_here_), link, send,
                          owners = payload](const std::byte*) {
    if (is_here.expired()) return;
    events_.After(absl::ZeroDuration(), [this, link, send] { Complete(link, send); });
  };
  const ByteView body = parts->body;
  return {Slice::Of(Gather(parts->head)),
          {body.data(), body.size(),
           std::shared_ptr<const std::byte>(body.data(), give_back)}};
}

std::shared_ptr<InprocNetwork::Transit> InprocNetwork::Enter(Link& link, size_t bytes) {
  Pipe& pipe = pipes_[{link.from, link.to}];
  const absl::Duration now = events_.now();
  pipe.Settle(now);
  auto transit = std::make_shared<Transit>();
  transit->bytes = bytes;
  transit->start = std::max(now, pipe.free_at);
  const double rate = pipe.bytes_per_second;
  const double seconds = rate > 0 ? static_cast<double>(bytes) / rate : 0;
  transit->end = transit->start + absl::Seconds(seconds);
  pipe.free_at = transit->end;
  pipe.transits.push_back(transit);
  return transit;
}

void InprocNetwork::Complete(const std::shared_ptr<Link>& link, uint64_t send) {
  const auto found = link->pending.find(send);
  if (found == link->pending.end()) return;
  const Link::Pending pending = std::move(found->second);
  link->pending.erase(found);
  if (pending.transit != nullptr) link->state.gone_bytes += pending.bytes;
  if (pending.done && !killed_.contains(link->from)) pending.done(link->refusal);
}

void InprocNetwork::Abandon(const std::shared_ptr<Link>& link) {
  link->is_over = true;
  const absl::Duration now = events_.now();
  Pipe& pipe = pipes_[{link->from, link->to}];
  pipe.Settle(now);
  const auto lose = [now](Transit& transit) {
    if (transit.end <= now) return;
    transit.is_lost = true;
    transit.bytes = transit.CrossedAt(now);
    transit.end = now;
  };
  for (const auto& [send, pending] : link->pending) {
    if (pending.transit != nullptr) lose(*pending.transit);
  }
  for (const auto& transit : link->pieces) lose(*transit);
  if (link->flow != nullptr) link->flow->Close();
  link->in_flow.clear();
  link->arrived_of_piece = 0;
  std::vector<SendDone> forgotten;
  link->queue.Clear(forgotten);
  // Other links may have messages behind the lost ones. These messages keep their times.
  pipe.free_at = now;
  for (const auto& transit : pipe.transits) {
    pipe.free_at = std::max(pipe.free_at, transit->end);
  }
  events_.After(absl::ZeroDuration(), [this, link, end = link->next_send] {
    while (!link->pending.empty() && link->pending.begin()->first < end) {
      Complete(link, link->pending.begin()->first);
    }
  });
}

uint64_t InprocNetwork::Crossed(const std::string& from, const std::string& to) {
  const auto found = pipes_.find({from, to});
  if (found == pipes_.end()) return 0;
  Pipe& pipe = found->second;
  pipe.Settle(events_.now());
  if (pipe.transits.empty()) return pipe.crossed;
  return pipe.crossed + pipe.transits.front()->CrossedAt(events_.now());
}

void InprocNetwork::SetRate(const std::string& from, const std::string& to,
                            double bytes_per_second) {
  pipes_[{from, to}].bytes_per_second = bytes_per_second;
}

void InprocNetwork::Break(const std::string& from, const std::string& to) {
  const auto node = alive_.find(from);
  if (node == alive_.end()) return;
  for (const std::weak_ptr<Link>& weak : node->second->links_) {
    const std::shared_ptr<Link> link = weak.lock();
    if (link == nullptr || link->to != to || !link->refusal.ok()) continue;
    link->is_broken = true;
    Fail(link, absl::UnavailableError("the connection broke"));
  }
}

void InprocNetwork::Schedule(const std::shared_ptr<Link>& link,
                             std::shared_ptr<const Parcel> parcel) {
  absl::Duration crossed = events_.now();
  if (parcel->transit != nullptr) crossed = parcel->transit->end;
  absl::Duration arrival = crossed + RandomDelay();
  if (options_.faults.reorder == Reorder::kNo) {
    arrival = std::max(arrival, link->last_arrival);
    link->last_arrival = arrival;
  }
  events_.After(arrival - events_.now(),
                [this, link, parcel = std::move(parcel)] { Deliver(*link, *parcel); });
}

void InprocNetwork::Deliver(const Link& link, const Parcel& parcel) {
  const auto found = alive_.find(link.to);
  const bool is_cut_short = parcel.transit != nullptr && parcel.transit->is_lost;
  const bool is_lost = is_cut_short || link.is_broken;
  if (is_lost || found == alive_.end() || IsCut(link.from, link.to)) return;
  Receiver& receiver = found->second->receiver_;
  const ByteView header = parcel.header.view();
  if (parcel.lent) return receiver.OnBorrowed(header, *parcel.lent);
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
    Abandon(link);
    if (link->on_failure) std::exchange(link->on_failure, nullptr)(status);
  });
}

}  // namespace syncline
