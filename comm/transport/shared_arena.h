// Memory that other processes of this host can read in place, so that a payload needs no
// copy between its encoder and its decoder.
//
// The owner of an arena writes a payload into memory from Allocate(), and sends it as a
// Slice whose owner is the returned pointer. If the peer is a process of the same place
// (same host, IPC and process namespace, and user), the transport sends a Loan instead of
// the bytes. The receiving transport borrows the bytes, and returns the loan when the
// last copy of the borrowed slice is gone. Until then the lender keeps the owner, so the
// memory is not reused, even if the endpoint is closed meanwhile.
//
// The memory is System V shared memory that is removed as soon as it is attached. Nothing
// is left behind, however the processes end, and the size of /dev/shm does not matter. (A
// process that is killed between the two calls leaves an entry in the system's table of
// segments, but no memory, because it has touched none.) Forked children do not inherit
// the memory, so they cannot keep it alive.
//
// Tensors of the lender's program may lie in an arena too (AllocateTensor), and are then
// sent from there. If an operation was cut off, borrowers may still read a tensor when
// the program writes to it; Withdraw hides these writes from them.
//
// A borrower trusts the lender not to change lent bytes. Both run as the same user, who
// could do worse.
//
// Thread safety: any thread may use a SharedArena, and the slices that Borrow returns.
// One thread may use a SharedBorrower.
//
//   auto arena = SharedArena::Create({.max_bytes = size_t{1} << 30});
//   std::shared_ptr<std::byte> memory = arena->Allocate(bytes);  // null: it is full
//   encode({memory.get(), bytes});
//   endpoint.Send(header, {Slice{memory.get(), bytes, memory}}, done);
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "comm/base/buffer.h"
#include "comm/transport/bell.h"

namespace syncline {

// The message that is sent instead of lent bytes. Part of the wire format between
// processes of one host.
struct Loan {
  uint64_t key = 0;     // random; identifies the segment even if the system reuses its id
  uint64_t bell = 0;    // bell to ring on return if the lender waits for it
  int32_t segment = 0;  // System V id
  uint32_t slot = 0;    // where the borrower marks the return
  uint64_t offset = 0;  // offset of the bytes in the segment
  uint64_t bytes = 0;
  uint32_t ticket = 0;  // value of the slot while the bytes are lent
  uint32_t zero = 0;
};
static_assert(sizeof(Loan) == 48);

// Set in a slot beside its ticket if the lender sleeps until the return.
inline constexpr uint32_t kRingOnReturn = uint32_t{1} << 31;

// The lender's record of a loan. Its methods are cheap enough to be called all the time.
struct Lending {
  Loan loan;
  std::atomic<uint32_t>* slot = nullptr;  // in the arena, which must still exist

  // Acquire order: the borrower's reads came before its return.
  bool Returned() const {
    return (slot->load(std::memory_order_acquire) & ~kRingOnReturn) != loan.ticket;
  }

  // Asks for a ring of the bell when the loan is returned. Returns false if it has been
  // returned already.
  bool RingOnReturn() const {
    uint32_t ticket = loan.ticket;
    return slot->compare_exchange_strong(ticket, loan.ticket | kRingOnReturn) ||
           ticket == (loan.ticket | kRingOnReturn);
  }

  // Ends the loan by force. Call it if the borrower is known to be dead, or never
  // received the loan.
  void Reclaim() const {
    uint32_t ticket = slot->load();
    while ((ticket & ~kRingOnReturn) == loan.ticket &&
           !slot->compare_exchange_weak(ticket, 0)) {
    }
  }
};

struct SharedArenaOptions {
  size_t segment_bytes = size_t{64} << 20;
  // The arena never takes more than this from the system, tensors not counted. Freed
  // memory is reused but never given back.
  size_t max_bytes = size_t{1} << 30;
};

class SharedArena {
 public:
  static std::shared_ptr<SharedArena> Create(const SharedArenaOptions& options);
  ~SharedArena();

  // Returns at least `bytes`, aligned to kBufferAlignment. Returns null if the arena
  // would exceed max_bytes, or if the system has no shared memory left. The memory may
  // outlive the arena.
  std::shared_ptr<std::byte> Allocate(size_t bytes);

  // Returns memory for a tensor of the program, on pages of its own and of any size.
  // Returns null if the system has no shared memory left. Zeros follow the tensor up to a
  // multiple of kBufferAlignment; its own initial contents are unspecified.
  std::shared_ptr<std::byte> AllocateTensor(size_t bytes);

  // Returns the owner that keeps a tensor's memory. Returns null unless these bytes are a
  // whole tensor, or the first bytes of one up to a multiple of kBufferAlignment.
  std::shared_ptr<const void> KeeperOf(ByteView tensor) const;

  // Replaces the memory of the tensor that begins at these bytes by ordinary memory with
  // the same contents. Borrowers then do not see later writes, and the tensor is not lent
  // any more. REQUIRES: no thread writes to the tensor during the call. Does nothing if
  // this is not a tensor of the arena, or if all its loans have been returned. Returns
  // false if there is no memory for the copy; borrowers then still see writes.
  [[nodiscard]] bool Withdraw(ByteView tensor);

  // Lends memory that came from Allocate() or AllocateTensor(). Returns nullopt if it did
  // not, or if too much is lent already. The caller must keep the memory until the loan
  // is returned. `bell` is the name of the bell that RingOnReturn asks for.
  std::optional<Lending> Lend(ByteView bytes, uint64_t bell = 0);

  // Keeps `owners` until the loan is returned, or until `borrower_is_gone` returns true;
  // for lenders that do not want to wait. This is checked each time memory is requested.
  void KeepUntilReturned(const Lending& lending, Payload owners,
                         std::function<bool()> borrower_is_gone);

  size_t taken_bytes() const;

 private:
  struct State;
  explicit SharedArena(std::shared_ptr<State> state) : state_(std::move(state)) {}

  std::shared_ptr<State> state_;
};

class SharedBorrower {
 public:
  // Returns the lent bytes, in place. Fails with InvalidArgument if the loan does not
  // name bytes inside a segment of an arena. The slice may outlive the borrower.
  absl::StatusOr<Slice> Borrow(const Loan& loan);

  // Detaches segments whose arena is gone. Slices that were borrowed from them keep them
  // attached. Takes a few microseconds for each segment; borrowers should call it from
  // time to time.
  void DetachOrphans();
  size_t attached_segments() const { return attached_.size(); }

 private:
  class Attachment;

  absl::StatusOr<std::shared_ptr<Attachment>> AttachmentFor(const Loan& loan);

  const std::shared_ptr<const Ringer> ringer_ = std::make_shared<Ringer>();
  std::map<std::pair<int32_t, uint64_t>, std::shared_ptr<Attachment>> attached_;
};

}  // namespace syncline
