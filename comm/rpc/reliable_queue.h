// The messages that one side of a control link has sent and the other has not
// acknowledged. A new stream continues with them after a broken one. Messages are
// numbered from 1.
//
//   ReliableQueue<v1::MemberMessage> queue({});
//   SYNCLINE_ASSIGN_OR_RETURN(const uint64_t number, queue.Push(message, bytes));
//   queue.Acknowledge(seen);                // `seen` comes from the other side
//   if (!queue.CanReplayAfter(seen)) ...    // the other side has another link's state
//   for (const auto& [number, message] : queue.After(seen)) ...
//
// Pure: no clock, no thread, no stream. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace syncline {

// Limits for unacknowledged messages: a member that does not read would otherwise fill
// the coordinator's memory. The largest message alone has 64 MiB (comm/rpc/channel.h).
struct ReliableQueueLimits {
  size_t messages = size_t{1} << 16;
  size_t bytes = size_t{128} << 20;
};

template <typename Message>
class ReliableQueue {
 public:
  using Entry = std::pair<uint64_t, std::shared_ptr<const Message>>;

  explicit ReliableQueue(ReliableQueueLimits limits) : limits_(limits) {}

  // Returns the number that the next message will get.
  uint64_t next() const { return last_ + 1; }
  uint64_t last() const { return last_; }
  uint64_t acknowledged() const { return first() - 1; }
  size_t bytes() const { return bytes_; }
  size_t size() const { return kept_.size(); }

  // Keeps `message`, of `bytes` on the wire, and returns its number. Fails with
  // ResourceExhausted, without keeping it, when too much is unacknowledged.
  absl::StatusOr<uint64_t> Push(std::shared_ptr<const Message> message, size_t bytes) {
    if (kept_.size() >= limits_.messages || bytes_ + bytes > limits_.bytes) {
      return absl::ResourceExhaustedError(
          absl::StrCat(kept_.size(), " control messages of ", bytes_,
                       " bytes are not acknowledged; the other side does not read"));
    }
    kept_.push_back({std::move(message), bytes});
    bytes_ += bytes;
    return ++last_;
  }

  // Drops all messages up to `number`, which the other side has seen. Ignores numbers
  // that were never assigned.
  void Acknowledge(uint64_t number) {
    if (number > last_) return;
    while (!kept_.empty() && first() <= number) {
      bytes_ -= kept_.front().bytes;
      kept_.pop_front();
    }
  }

  // Starts from scratch, for a peer that has seen nothing.
  void Clear() {
    kept_.clear();
    bytes_ = 0;
    last_ = 0;
  }

  // Returns true if `number` was assigned and all later messages are kept.
  bool CanReplayAfter(uint64_t number) const {
    return number <= last_ && number + 1 >= first();
  }

  // Returns message `number`; null when it is acknowledged or was never assigned.
  std::shared_ptr<const Message> Find(uint64_t number) const {
    if (number < first() || number > last_) return nullptr;
    return kept_[number - first()].message;
  }

  // Returns the messages after `number`, oldest first.
  std::vector<Entry> After(uint64_t number) const {
    std::vector<Entry> entries;
    for (uint64_t n = std::max(number + 1, first()); n <= last_; ++n) {
      entries.emplace_back(n, Find(n));
    }
    return entries;
  }

 private:
  struct Kept {
    std::shared_ptr<const Message> message;
    size_t bytes = 0;
  };

  // Returns the number of the oldest message kept.
  uint64_t first() const { return last_ + 1 - kept_.size(); }

  const ReliableQueueLimits limits_;
  std::deque<Kept> kept_;
  size_t bytes_ = 0;
  uint64_t last_ = 0;
};

// The receiving side: accepts each number once and in order.
class ReceivedNumbers {
 public:
  enum class Verdict { kNew, kRepeated, kGap };

  Verdict Take(uint64_t number) {
    if (number <= last_) return Verdict::kRepeated;
    if (number != last_ + 1) return Verdict::kGap;
    last_ = number;
    return Verdict::kNew;
  }
  uint64_t last() const { return last_; }

 private:
  uint64_t last_ = 0;
};

}  // namespace syncline
