#include "comm/collective/group/shared_wire.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <ctime>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace syncline::collective {
namespace {

using HeaderWords = std::array<uint64_t, sizeof(CallHeader) / 8>;

absl::Status AboutRank(absl::StatusCode code, int rank, const std::string& what) {
  absl::Status status(code, absl::StrCat("rank ", rank, " ", what));
  SetFailedRank(status, rank);
  return status;
}

}  // namespace

class SharedWire::SharedLane final : public Lane {
 public:
  // The lane from `own` to `peer` and back.
  SharedLane(int rank, const SharedSegment& own, const SharedSegment& peer, int peer_rank,
             int kind)
      : peer_(peer),
        capacity_(own.ring_bytes()),
        out_(peer.ring(rank, kind)),
        in_(own.ring(peer_rank, kind)),
        out_data_(peer.data(rank, kind)),
        in_data_(own.data(peer_rank, kind)) {}

  MutableByteView Room() override {
    const size_t offset = written_ % capacity_;
    size_t free = capacity_ - (written_ - peer_read_);
    if (free < capacity_ / 2) {
      peer_read_ = out_.read.load(std::memory_order_seq_cst);
      free = capacity_ - std::min(capacity_, written_ - peer_read_);
    }
    return {out_data_ + offset, std::min(free, capacity_ - offset)};
  }

  void Commit(size_t bytes) override {
    written_ += bytes;
    out_.written.store(written_, std::memory_order_seq_cst);
    peer_.Ring();
  }

  ByteView Arrived() override {
    const size_t offset = read_ % capacity_;
    if (arrived_ == read_) arrived_ = in_.written.load(std::memory_order_seq_cst);
    const size_t there = std::min(capacity_, arrived_ - read_);
    return {in_data_ + offset, std::min(there, capacity_ - offset)};
  }

  void Consume(size_t bytes) override {
    read_ += bytes;
    in_.read.store(read_, std::memory_order_seq_cst);
    peer_.Ring();
  }

 private:
  const SharedSegment& peer_;
  const size_t capacity_;
  SharedRing& out_;
  SharedRing& in_;
  std::byte* const out_data_;
  const std::byte* const in_data_;
  uint64_t written_ = 0;
  uint64_t peer_read_ = 0;
  uint64_t read_ = 0;
  uint64_t arrived_ = 0;
};

SharedWire::SharedWire(int rank, std::unique_ptr<SharedSegment> own,
                       std::vector<std::unique_ptr<SharedSegment>> peers,
                       absl::Duration failure_timeout)
    : rank_(rank),
      failure_timeout_(failure_timeout),
      own_(std::move(own)),
      peers_(std::move(peers)),
      seen_(peers_.size(), Liveness(failure_timeout)) {
  for (int kind = 0; kind < 2; ++kind) {
    for (size_t other = 0; other < peers_.size(); ++other) {
      lanes_[kind].push_back(nullptr);
      if (peers_[other] == nullptr) continue;
      owned_lanes_.push_back(std::make_unique<SharedLane>(rank, *own_, *peers_[other],
                                                          static_cast<int>(other), kind));
      lanes_[kind].back() = owned_lanes_.back().get();
    }
  }
  beating_ = std::thread([this] { Beat(); });
}

SharedWire::~SharedWire() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    stopped_.SignalAll();
  }
  beating_.join();
  own().left.store(1, std::memory_order_seq_cst);
  RingAll();
}

void SharedWire::Beat() {
  absl::MutexLock lock(&mutex_);
  while (!stopping_) {
    own().beat.fetch_add(1, std::memory_order_relaxed);
    stopped_.WaitFor(mutex_, failure_timeout_ / kBeatsPerTimeout);
  }
}

void SharedWire::RingAll() const {
  for (const auto& peer : peers_) {
    if (peer != nullptr) peer->Ring();
  }
}

std::vector<int> SharedWire::Behind(uint64_t sequence) const {
  std::vector<int> ranks;
  for (size_t rank = 0; rank < peers_.size(); ++rank) {
    if (peers_[rank] != nullptr &&
        peers_[rank]->header().entered.load(std::memory_order_seq_cst) < sequence) {
      ranks.push_back(static_cast<int>(rank));
    }
  }
  return ranks;
}

SharedWire* SharedWire::board() {
  const auto shares = [](const auto& peer) { return peer != nullptr; };
  return std::count_if(peers_.begin(), peers_.end(), shares) + 1 == ranks() ? this
                                                                            : nullptr;
}

void SharedWire::Enter(const CallHeader& header) {
  SharedHeader& own = this->own();
  own.entered.store(0, std::memory_order_relaxed);
  // A reader that gets one of these words no longer finds the previous number.
  const auto words = std::bit_cast<HeaderWords>(header);
  for (size_t i = 0; i < words.size(); ++i) {
    own.entered_words[i].store(words[i], std::memory_order_release);
  }
  own.entered.store(header.sequence, std::memory_order_release);
}

void SharedWire::PrepareToSleep() {
  bell_ = own().bell.load(std::memory_order_seq_cst);
  own().sleeping.store(1, std::memory_order_seq_cst);
}

void SharedWire::Sleep(absl::Duration timeout) {
  const timespec limit = absl::ToTimespec(timeout);
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&own().bell), FUTEX_WAIT, bell_, &limit,
          nullptr, 0);
  Stay();
}

void SharedWire::Stay() { own().sleeping.store(0, std::memory_order_seq_cst); }

void SharedWire::Report(const absl::Status& status) {
  SharedHeader& own = this->own();
  if (own.failed.load(std::memory_order_relaxed) != 0) return;
  own.failed_code = status.raw_code();
  own.failed_rank = FailedRank(status).value_or(-1);
  const size_t length = std::min(status.message().size(), sizeof own.failed_message - 1);
  std::memcpy(own.failed_message, status.message().data(), length);
  own.failed.store(1, std::memory_order_seq_cst);
  for (const auto& peer : peers_) {
    if (peer != nullptr) peer->RingAnyway();
  }
}

// A failure that another rank reported takes precedence over what this rank would find.
// It came first, and a rank that waits for a survivor must not blame the survivor.
absl::Status SharedWire::CheckReports() {
  for (size_t rank = 0; rank < peers_.size(); ++rank) {
    if (peers_[rank] == nullptr) continue;
    const SharedHeader& its = peers_[rank]->header();
    if (its.failed.load(std::memory_order_seq_cst) == 0) continue;
    const std::string message(its.failed_message,
                              strnlen(its.failed_message, sizeof its.failed_message));
    absl::Status status(static_cast<absl::StatusCode>(its.failed_code), message);
    if (its.failed_rank >= 0) SetFailedRank(status, its.failed_rank);
    return ReportedBy(static_cast<int>(rank), rank_, std::move(status));
  }
  return absl::OkStatus();
}

absl::Status SharedWire::CheckAlive(int rank) {
  const auto index = static_cast<size_t>(rank);
  const SharedHeader& its = peers_[index]->header();
  if (its.left.load(std::memory_order_seq_cst) != 0) {
    return AboutRank(absl::StatusCode::kAborted, rank,
                     "has left the group: form a new one without it");
  }
  if (peers_[index]->OwnerIsDead()) {
    return AboutRank(absl::StatusCode::kAborted, rank,
                     "has died: its process is gone; form a new group without it");
  }
  if (seen_[index].Look(its.beat.load(std::memory_order_relaxed), clock_.Now())) {
    return absl::OkStatus();
  }
  return AboutRank(absl::StatusCode::kAborted, rank,
                   absl::StrCat("hangs: its process has not run for ",
                                absl::FormatDuration(failure_timeout_),
                                "; form a new group without it"));
}

absl::Status SharedWire::CheckSame(int rank, const CallHeader& header) const {
  const SharedHeader& its = peers_[static_cast<size_t>(rank)]->header();
  if (its.entered.load(std::memory_order_acquire) != header.sequence) {
    return absl::OkStatus();
  }
  HeaderWords words;
  for (size_t i = 0; i < words.size(); ++i) {
    words[i] = its.entered_words[i].load(std::memory_order_acquire);
  }
  if (its.entered.load(std::memory_order_relaxed) != header.sequence) {
    return absl::OkStatus();
  }
  return CompareEntered(rank, std::bit_cast<CallHeader>(words), header);
}

absl::Status SharedWire::Check(const std::vector<int>& ranks, const CallHeader* header) {
  absl::Status status = CheckReports();
  for (size_t i = 0; i < ranks.size() && status.ok(); ++i) {
    if (header != nullptr) status = CheckSame(ranks[i], *header);
    if (status.ok()) status = CheckAlive(ranks[i]);
  }
  return status;
}

}  // namespace syncline::collective
