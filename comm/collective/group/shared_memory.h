// The memory that a rank shows its neighbours on the same host: rings into which they
// write, a bell to wake it, what it is in, and how it fares.
//
// Each rank makes a segment of its own (a memfd; no file system and no limit of /dev/shm is
// involved) and the others open it through /proc. A lock on it belongs to the rank's own
// opening of the file, so the kernel releases it whenever and however the process ends: a
// held lock means a living process, also where process numbers mean nothing.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/base/unique_fd.h"
#include "comm/collective/group/call.h"
#include "comm/transport/bell.h"

namespace syncline::collective {

// Smaller operations go through the board: one flag and one read for each peer.
inline constexpr size_t kBoardBytes = 2048;

struct SharedRing {
  alignas(64) std::atomic<uint64_t> written = 0;  // bytes, by the writer
  alignas(64) std::atomic<uint64_t> read = 0;     // by the owner of the segment
  // The nonce of the writer's segment as the owner opened it; 0: not yet. Of kind 0 only.
  alignas(64) std::atomic<uint64_t> opened = 0;
};

struct BoardSlot {
  alignas(64) CallHeader header;
  std::byte data[kBoardBytes];
};

struct SharedHeader {
  // Random: tells this segment from one that an earlier group had under the same address.
  uint64_t nonce = 0;
  // "Sleeping" is set before a last look, and looked at after each move: one of the two
  // sees the other.
  alignas(64) std::atomic<uint32_t> bell = 0;
  std::atomic<uint32_t> sleeping = 0;
  uint64_t bell_name = 0;  // of the Bell on which it sleeps, too; 0: none
  alignas(64) std::atomic<uint64_t> beat = 0;
  std::atomic<uint32_t> left = 0;
  // Set once, after what follows.
  std::atomic<uint32_t> failed = 0;
  int32_t failed_code = 0;
  int32_t failed_rank = -1;
  char failed_message[480] = {};
  // The collective operation that this rank is in: valid while `entered` is its number.
  alignas(64) std::atomic<uint64_t> entered = 0;
  std::array<std::atomic<uint64_t>, sizeof(CallHeader) / 8> entered_words = {};
  // Number of the last operation on the board. Its slot is free again two later: nobody
  // can be two behind.
  alignas(64) std::atomic<uint64_t> posted = 0;
  BoardSlot slots[2] = {};
};

// How much the rings of a group hold; the same in all its segments.
struct SharedLayout {
  int ranks = 0;
  size_t ring_bytes = 0;

  static SharedLayout For(int ranks);
  size_t total_bytes() const;
};

class SharedSegment {
 public:
  // This rank's own.
  static absl::StatusOr<std::unique_ptr<SharedSegment>> Create(
      const SharedLayout& layout);
  // Another rank's, by what its address() was. Not of a rank that has left.
  static absl::StatusOr<std::unique_ptr<SharedSegment>> Open(const std::string& address,
                                                             const SharedLayout& layout);
  ~SharedSegment();
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  // "PID/FD/NONCE", of this host.
  const std::string& address() const { return address_; }

  SharedHeader& header() const { return *reinterpret_cast<SharedHeader*>(memory_); }
  // What `writer` sends to the owner. kind 0: of collective operations; 1: of sends.
  SharedRing& ring(int writer, int kind) const;
  std::byte* data(int writer, int kind) const;
  size_t ring_bytes() const { return layout_.ring_bytes; }
  const SharedLayout& layout() const { return layout_; }

  // Whether the process that made it is gone. Not of one's own segment.
  bool OwnerIsDead() const;

  void Ring() const;        // wakes the owner if it sleeps
  void RingAnyway() const;  // ends its next sleep, too
  // Its owner, and those that ring it, may sleep on sockets as well.
  void UseRinger(std::shared_ptr<const Ringer> ringer) { ringer_ = std::move(ringer); }

 private:
  SharedSegment(const SharedLayout& layout, UniqueFd fd)
      : layout_(layout), fd_(std::move(fd)) {}
  absl::Status Map();
  size_t RingOffset(int writer, int kind) const;

  const SharedLayout layout_;
  UniqueFd fd_;
  std::byte* memory_ = nullptr;
  std::string address_;
  std::shared_ptr<const Ringer> ringer_;
};

// Where shared memory reaches: the same on two processes that can open each other's
// segments. Boot, user, and namespaces of processes.
std::string SharedPlace();

}  // namespace syncline::collective
