// The memory that a rank shares with the other ranks of its host: rings for their data, a
// bell to wake it, its current operation, and its heartbeat and failure.
//
// Each rank creates a segment (a memfd, so no file system or /dev/shm limit is involved),
// and the others open it through /proc. The rank holds a lock that belongs to its own
// opening of the file. The kernel releases the lock however the process ends. So a held
// lock means a living process, even where process ids are not comparable.
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

// Larger operations do not use the board.
inline constexpr size_t kBoardBytes = 2048;

struct SharedRing {
  alignas(64) std::atomic<uint64_t> written = 0;  // total bytes, set by the writer
  alignas(64) std::atomic<uint64_t> read = 0;  // total bytes, set by the segment's owner
  // Nonce of the writer's segment as the owner opened it; 0: not yet. Only in rings of
  // kind 0.
  alignas(64) std::atomic<uint64_t> opened = 0;
};

struct BoardSlot {
  alignas(64) CallHeader header;
  std::byte data[kBoardBytes];
};

struct SharedHeader {
  // Random. Distinguishes this segment from one of an earlier group at the same address.
  uint64_t nonce = 0;
  // The owner sets `sleeping` before its last check for data; a writer reads it after
  // each write. So at least one of them sees the other.
  alignas(64) std::atomic<uint32_t> bell = 0;
  std::atomic<uint32_t> sleeping = 0;
  uint64_t bell_name = 0;  // Bell on which the owner also sleeps; 0: none
  alignas(64) std::atomic<uint64_t> beat = 0;
  std::atomic<uint32_t> left = 0;
  // Set once, after the three fields below.
  std::atomic<uint32_t> failed = 0;
  int32_t failed_code = 0;
  int32_t failed_rank = -1;
  char failed_message[480] = {};
  // Current collective operation of this rank: valid while `entered` is its number.
  alignas(64) std::atomic<uint64_t> entered = 0;
  std::array<std::atomic<uint64_t>, sizeof(CallHeader) / 8> entered_words = {};
  // Number of the last operation on the board. Its slot is reused two operations later:
  // no rank can be two operations behind.
  alignas(64) std::atomic<uint64_t> posted = 0;
  BoardSlot slots[2] = {};
};

// Size of a group's rings, equal in all its segments.
struct SharedLayout {
  int ranks = 0;
  size_t ring_bytes = 0;

  static SharedLayout For(int ranks);
  size_t total_bytes() const;
};

class SharedSegment {
 public:
  // Creates this rank's segment.
  static absl::StatusOr<std::unique_ptr<SharedSegment>> Create(
      const SharedLayout& layout);
  // Opens another rank's segment by its address(). Fails if that rank has left.
  static absl::StatusOr<std::unique_ptr<SharedSegment>> Open(const std::string& address,
                                                             const SharedLayout& layout);
  ~SharedSegment();
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  // "PID/FD/NONCE"; valid on this host.
  const std::string& address() const { return address_; }

  SharedHeader& header() const { return *reinterpret_cast<SharedHeader*>(memory_); }
  // Returns the ring from `writer` to the owner. kind 0: collective operations; 1: sends.
  SharedRing& ring(int writer, int kind) const;
  std::byte* data(int writer, int kind) const;
  size_t ring_bytes() const { return layout_.ring_bytes; }
  const SharedLayout& layout() const { return layout_; }

  // Whether the owner's process is gone. REQUIRES: not this rank's own segment.
  bool OwnerIsDead() const;

  void Ring() const;        // wakes the owner if it sleeps
  void RingAnyway() const;  // also ends its next sleep
  // Lets the owner sleep on sockets, too: Ring then also uses `ringer`.
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

// Returns an identifier of the place within which processes can open each other's
// segments: boot, user and process namespaces.
std::string SharedPlace();

}  // namespace syncline::collective
