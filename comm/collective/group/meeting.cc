#include "comm/collective/group/meeting.h"

#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/base/env.h"
#include "comm/base/status.h"
#include "comm/collective/group/call.h"
#include "comm/collective/group/group.h"

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
                     " at least: a rank may wait for a core as long as that"));
  }
  return absl::OkStatus();
}

absl::Status AboutRank(int rank, const absl::Status& why) {
  absl::Status status(why.code(), absl::StrCat("rank ", rank, ": ", why.message()));
  SetFailedRank(status, rank);
  return status;
}

absl::StatusOr<Segments> OpenPeers(const GroupOptions& options, SharedSegment& own) {
  const std::string place = SharedPlace();
  const auto key = [&](int rank) { return absl::StrCat(options.name, "/", rank); };
  SYNCLINE_RETURN_IF_ERROR(
      options.store->Set(key(options.rank), absl::StrCat(own.address(), "@", place)));
  Segments peers(static_cast<size_t>(options.ranks));
  for (int rank = 0; rank < options.ranks; ++rank) {
    if (rank == options.rank) continue;
    SYNCLINE_ASSIGN_OR_RETURN(const std::string card,
                              options.store->Get(key(rank), options.start_timeout));
    const size_t at = card.find('@');
    if (at == std::string::npos || card.substr(at + 1) != place) {
      return absl::UnimplementedError(absl::StrCat(
          "rank ", rank, " cannot share memory with rank ", options.rank,
          ": it runs on another host, in another container, or as another user; groups "
          "between hosts are not there yet"));
    }
    auto peer = SharedSegment::Open(card.substr(0, at), own.layout());
    if (!peer.ok()) return AboutRank(rank, peer.status());
    own.ring(rank, 0).opened.store((*peer)->header().nonce, std::memory_order_release);
    peers[static_cast<size_t>(rank)] = *std::move(peer);
  }
  return peers;
}

// What the peer opened as this rank's memory: 0 while it has not opened any.
absl::Status CheckOpened(const SharedSegment& peer, uint64_t opened, uint64_t nonce) {
  if (opened == nonce) return absl::OkStatus();
  if (opened != 0) {
    return absl::FailedPreconditionError(
        "what the store says of it is of an earlier group of the same name, which it has "
        "not ended yet: end a group on all ranks before its name is used again, or give "
        "each group a name of its own");
  }
  if (peer.header().left.load(std::memory_order_seq_cst) == 0 && !peer.OwnerIsDead()) {
    return absl::OkStatus();
  }
  return absl::AbortedError("it has ended before the group was complete");
}

absl::Status WaitForPeers(const GroupOptions& options, const SharedSegment& own,
                          const Segments& peers) {
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
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<SharedWire>> Meet(const GroupOptions& options) {
  SYNCLINE_RETURN_IF_ERROR(CheckOptions(options));
  SYNCLINE_ASSIGN_OR_RETURN(auto own,
                            SharedSegment::Create(SharedLayout::For(options.ranks)));
  SYNCLINE_ASSIGN_OR_RETURN(Segments peers, OpenPeers(options, *own));
  SYNCLINE_RETURN_IF_ERROR(WaitForPeers(options, *own, peers));
  return std::make_unique<SharedWire>(options.rank, std::move(own), std::move(peers),
                                      options.failure_timeout);
}

}  // namespace syncline::collective
