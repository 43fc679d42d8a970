#include "comm/collective/group/meeting.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "comm/base/env.h"
#include "comm/base/status.h"
#include "comm/collective/group/call.h"
#include "comm/collective/group/group.h"
#include "comm/collective/group/mixed_wire.h"
#include "comm/collective/group/shared_wire.h"
#include "comm/collective/group/tcp_wire.h"
#include "comm/transport/tcp/address.h"
#include "comm/transport/tcp/member_key.h"

namespace syncline::collective {
namespace {

using Segments = std::vector<std::unique_ptr<SharedSegment>>;

absl::Status CheckOptions(const GroupOptions& options) {
  if (options.ranks < 1 || options.rank < 0 || options.rank >= options.ranks ||
      options.store == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a group needs a store and a rank below the number of ranks, got rank ",
        options.rank, " of ", options.ranks));
  }
  if (options.failure_timeout < kLeastFailureTimeout) {
    return absl::InvalidArgumentError(
        absl::StrCat("the failure timeout of a group is ",
                     absl::FormatDuration(options.failure_timeout), ", but must be ",
                     absl::FormatDuration(kLeastFailureTimeout),
                     " or more: a rank may wait that long for a core"));
  }
  return absl::OkStatus();
}

absl::Status AboutRank(int rank, const absl::Status& why) {
  absl::Status status(why.code(), absl::StrCat("rank ", rank, ": ", why.message()));
  SetFailedRank(status, rank);
  return status;
}

// Exchanges information between ranks through the store, before they can communicate.
class Cards {
 public:
  explicit Cards(const GroupOptions& options) : options_(options) {}

  // Publishes `own` under "GROUP/KIND/RANK", and returns what all ranks have published
  // there.
  absl::StatusOr<std::vector<std::string>> Exchange(const std::string& kind,
                                                    const std::string& own) const {
    const auto key = [&](int rank) {
      return absl::StrCat(options_.name, kind, "/", rank);
    };
    SYNCLINE_RETURN_IF_ERROR(options_.store->Set(key(options_.rank), own));
    std::vector<std::string> cards;
    for (int rank = 0; rank < options_.ranks; ++rank) {
      if (rank == options_.rank) {
        cards.push_back(own);
        continue;
      }
      SYNCLINE_ASSIGN_OR_RETURN(std::string card, Get(key(rank)));
      cards.push_back(std::move(card));
    }
    return cards;
  }

  // Returns on all ranks the value of the first rank.
  absl::StatusOr<std::string> Share(const std::string& kind,
                                    const std::string& own) const {
    const std::string key = absl::StrCat(options_.name, kind);
    if (options_.rank != 0) return Get(key);
    SYNCLINE_RETURN_IF_ERROR(options_.store->Set(key, own));
    return own;
  }

 private:
  absl::StatusOr<std::string> Get(const std::string& key) const {
    return options_.store->Get(key, options_.start_timeout);
  }

  const GroupOptions& options_;
};

// "ADDRESS@PLACE": the address of a rank's shared memory, and where it can be opened.
struct MemoryCard {
  std::string address;
  std::string place;
};

absl::StatusOr<std::vector<MemoryCard>> ExchangeMemory(const GroupOptions& options,
                                                       const SharedSegment& own) {
  const std::string place = absl::StrCat(SharedPlace(), "/", options.host);
  SYNCLINE_ASSIGN_OR_RETURN(
      const auto cards,
      Cards(options).Exchange("", absl::StrCat(own.address(), "@", place)));
  std::vector<MemoryCard> parsed;
  for (const std::string& card : cards) {
    const size_t at = std::min(card.find('@'), card.size());
    parsed.push_back({card.substr(0, at), card.substr(std::min(at + 1, card.size()))});
  }
  return parsed;
}

std::vector<int> NumberHosts(const std::vector<MemoryCard>& cards) {
  std::vector<int> host_of;
  std::vector<std::string> places;
  for (const MemoryCard& card : cards) {
    const auto found = std::find(places.begin(), places.end(), card.place);
    host_of.push_back(static_cast<int>(found - places.begin()));
    if (found == places.end()) places.push_back(card.place);
  }
  return host_of;
}

// Opens the segments of ranks on this host; null for the others.
absl::StatusOr<Segments> OpenPeers(const GroupOptions& options, SharedSegment& own,
                                   const std::vector<MemoryCard>& cards) {
  Segments peers(cards.size());
  const auto self = static_cast<size_t>(options.rank);
  for (size_t rank = 0; rank < cards.size(); ++rank) {
    if (rank == self || cards[rank].place != cards[self].place) continue;
    auto peer = SharedSegment::Open(cards[rank].address, own.layout());
    if (!peer.ok()) return AboutRank(static_cast<int>(rank), peer.status());
    own.ring(static_cast<int>(rank), 0)
        .opened.store((*peer)->header().nonce, std::memory_order_release);
    peers[rank] = *std::move(peer);
  }
  return peers;
}

// Checks what the peer opened as this rank's memory. `opened` is 0 if it has not opened
// any.
absl::Status CheckOpened(const SharedSegment& peer, uint64_t opened, uint64_t nonce) {
  if (opened == nonce) return absl::OkStatus();
  if (opened != 0) {
    return absl::FailedPreconditionError(
        "the store holds its entry for an earlier group of the same name, which it has "
        "not ended yet: end a group on all ranks before you reuse its name, or give each "
        "group its own name");
  }
  if (peer.header().left.load(std::memory_order_seq_cst) == 0 && !peer.OwnerIsDead()) {
    return absl::OkStatus();
  }
  return absl::AbortedError("it has ended before the group was complete");
}

// `far`: null, or the wire to ranks on other hosts, which needs heartbeats meanwhile.
absl::Status WaitForPeers(const GroupOptions& options, const SharedSegment& own,
                          const Segments& peers, TcpWire* far) {
  const SteadyClock clock;
  const uint64_t nonce = own.header().nonce;
  for (int rank = 0; rank < options.ranks; ++rank) {
    const SharedSegment* const peer = peers[static_cast<size_t>(rank)].get();
    if (peer == nullptr) continue;
    const std::atomic<uint64_t>& opened = peer->ring(options.rank, 0).opened;
    while (true) {
      const uint64_t now = opened.load(std::memory_order_acquire);
      const absl::Status status = CheckOpened(*peer, now, nonce);
      if (!status.ok()) return AboutRank(rank, status);
      if (now == nonce) break;
      if (clock.Now() >= options.start_timeout) {
        return AboutRank(rank,
                         absl::DeadlineExceededError(absl::StrCat(
                             "it has not joined the group '", options.name, "' within ",
                             absl::FormatDuration(options.start_timeout))));
      }
      if (far != nullptr) SYNCLINE_RETURN_IF_ERROR(far->TendMeeting());
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }
  return absl::OkStatus();
}

// ---- Between hosts ----

// Parses "tcp:HOST:PORT@NUMBER", or "!" followed by the reason why there is no address.
absl::StatusOr<TcpCard> ParseTcpCard(const std::string& card) {
  if (card.starts_with('!')) return absl::UnavailableError(card.substr(1));
  TcpCard parsed;
  const size_t at = std::min(card.rfind('@'), card.size());
  parsed.address = card.substr(0, at);
  if (!absl::SimpleAtoi(card.substr(std::min(at + 1, card.size())), &parsed.nonce)) {
    return absl::InvalidArgumentError("its address in the store is malformed");
  }
  return parsed;
}

absl::StatusOr<std::unique_ptr<TcpWire>> Listen(const GroupOptions& options,
                                                uint64_t nonce) {
  std::string host = options.address;
  // If the host has no other address, the peers must be on the same host.
  if (host.empty()) host = PrimaryAddress().value_or("127.0.0.1");
  return TcpWire::Listen({.rank = options.rank,
                          .ranks = options.ranks,
                          .host = host,
                          .nonce = nonce,
                          .security = options.security,
                          .failure_timeout = options.failure_timeout});
}

absl::StatusOr<SecretKey> ParseKey(const std::string& hex) {
  const bool is_hex = hex.find_first_not_of("0123456789abcdef") == std::string::npos;
  const std::string bytes = is_hex ? absl::HexStringToBytes(hex) : "";
  const auto key = SecretKey::From(std::as_bytes(std::span(bytes)));
  if (key.has_value()) return *key;
  return absl::InvalidArgumentError("the group's key in the store is malformed");
}

std::string KeyToShare() {
  const SecretKey key = DrawKey();
  return absl::BytesToHexString(absl::string_view(
      reinterpret_cast<const char*>(key.bytes().data()), key.bytes().size()));
}

absl::StatusOr<std::unique_ptr<TcpWire>> ConnectHosts(const GroupOptions& options,
                                                      const std::vector<int>& host_of,
                                                      uint64_t nonce) {
  auto wire = Listen(options, nonce);
  const std::string own = wire.ok() ? absl::StrCat((*wire)->address(), "@", nonce)
                                    : absl::StrCat("!", wire.status().message());
  const Cards cards(options);
  SYNCLINE_ASSIGN_OR_RETURN(const auto addresses, cards.Exchange("/tcp", own));
  SYNCLINE_RETURN_IF_ERROR(wire.status());
  SYNCLINE_ASSIGN_OR_RETURN(const std::string hex,
                            cards.Share("/key", options.rank == 0 ? KeyToShare() : ""));
  SYNCLINE_ASSIGN_OR_RETURN(const SecretKey key, ParseKey(hex));
  std::vector<std::optional<TcpCard>> others(addresses.size());
  for (size_t rank = 0; rank < addresses.size(); ++rank) {
    if (host_of[rank] == host_of[static_cast<size_t>(options.rank)]) continue;
    auto card = ParseTcpCard(addresses[rank]);
    if (!card.ok()) return AboutRank(static_cast<int>(rank), card.status());
    others[rank] = *std::move(card);
  }
  SYNCLINE_RETURN_IF_ERROR((*wire)->Connect(others, key, options.start_timeout));
  return *std::move(wire);
}

// If some ranks are on this host and others elsewhere, this rank sleeps on both.
absl::StatusOr<std::unique_ptr<Bell>> HangBell(SharedSegment& own,
                                               const Segments& peers) {
  SYNCLINE_ASSIGN_OR_RETURN(auto bell, Bell::Create());
  const auto ringer = std::make_shared<const Ringer>();
  own.header().bell_name = bell->name();
  own.UseRinger(ringer);
  for (const auto& peer : peers) {
    if (peer != nullptr) peer->UseRinger(ringer);
  }
  return bell;
}

}  // namespace

int Meeting::hosts() const {
  return *std::max_element(host_of.begin(), host_of.end()) + 1;
}

int Meeting::RanksBeside(int rank) const {
  const int host = host_of[static_cast<size_t>(rank)];
  return static_cast<int>(std::count(host_of.begin(), host_of.end(), host));
}

int Meeting::RanksOfEachHost() const {
  const int local = RanksBeside(0);
  for (size_t rank = 0; rank < host_of.size(); ++rank) {
    // Hosts are numbered in order of ranks, so this also shows that all hosts are full.
    if (host_of[rank] != static_cast<int>(rank) / local) return 1;
  }
  return host_of.size() % static_cast<size_t>(local) == 0 ? local : 1;
}

absl::StatusOr<Meeting> Meet(const GroupOptions& options) {
  SYNCLINE_RETURN_IF_ERROR(CheckOptions(options));
  SYNCLINE_ASSIGN_OR_RETURN(auto own,
                            SharedSegment::Create(SharedLayout::For(options.ranks)));
  SYNCLINE_ASSIGN_OR_RETURN(const auto cards, ExchangeMemory(options, *own));
  SYNCLINE_ASSIGN_OR_RETURN(Segments peers, OpenPeers(options, *own, cards));
  Meeting meeting = {.wire = nullptr, .host_of = NumberHosts(cards)};
  const auto is_first = [](int host) { return host == 0; };
  const auto shares = [](const auto& peer) { return peer != nullptr; };
  const bool has_near = std::any_of(peers.begin(), peers.end(), shares);
  const bool has_far =
      !std::all_of(meeting.host_of.begin(), meeting.host_of.end(), is_first);
  std::unique_ptr<Bell> bell;
  std::unique_ptr<TcpWire> far;
  if (has_far && has_near) {
    SYNCLINE_ASSIGN_OR_RETURN(bell, HangBell(*own, peers));
  }
  if (has_far) {
    SYNCLINE_ASSIGN_OR_RETURN(
        far, ConnectHosts(options, meeting.host_of, own->header().nonce));
  }
  if (has_far && !has_near) {
    meeting.wire = std::move(far);
    return meeting;
  }
  SYNCLINE_RETURN_IF_ERROR(WaitForPeers(options, *own, peers, far.get()));
  auto near = std::make_unique<SharedWire>(options.rank, std::move(own), std::move(peers),
                                           options.failure_timeout);
  if (has_far) {
    meeting.wire =
        std::make_unique<MixedWire>(std::move(near), std::move(far), std::move(bell));
  } else {
    meeting.wire = std::move(near);
  }
  return meeting;
}

}  // namespace syncline::collective
