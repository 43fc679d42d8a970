// Memory that other processes of this host can read in place, so that a payload goes from
// its encoder to its decoder without one copy.
//
// The owner of an arena writes a payload into memory from Allocate() and sends it as a
// Slice that holds the returned pointer as its owner. A transport that reaches a process
// of the same place (same host, IPC and process namespace, user) then sends a Loan
// instead of the bytes; the receiving transport borrows, and returns the loan when the
// last copy of the borrowed slice is gone. Until then the lender keeps the owner, and the
// memory is not reused: whatever became of the endpoint meanwhile.
//
// The memory is System V shared memory, removed as soon as it is attached: nothing is
// left behind, however the processes end, and the size of /dev/shm does not matter. (A
// process that is killed between the two calls leaves a number of the system's table, and
// no memory: none was touched.) Children that are forked do not inherit it, so that they
// do not keep it either.
//
// Tensors of the lender's program may lie in it, too (AllocateTensor), and be sent from
// there. What the program writes to them while somebody may still read them, since it was
// cut off in the middle, is hidden from borrowers (Withdraw).
//
// A borrower trusts the lender not to change lent bytes. Both run as the same user, who
// could do worse.
//
// Thread safety: SharedArena and the slices that Borrow returns: any thread.
// SharedBorrower: one thread.
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

// What travels instead of the bytes; part of the wire format between processes of one
// host.
struct Loan {
  uint64_t key = 0;     // random: names the segment even when the system reuses its id
  uint64_t bell = 0;    // rung when the return of the loan is waited for
  int32_t segment = 0;  // System V id
  uint32_t slot = 0;    // where the borrower notes the return
  uint64_t offset = 0;  // of the bytes in the segment
  uint64_t bytes = 0;
  uint32_t ticket = 0;  // what the slot holds while lent
  uint32_t zero = 0;
};
static_assert(sizeof(Loan) == 48);

// Set in a slot beside its ticket when the lender sleeps until the return.
inline constexpr uint32_t kRingOnReturn = uint32_t{1} << 31;

// A loan as its lender keeps it. Cheap to ask, so that it may be asked all the time.
struct Lending {
  Loan loan;
  std::atomic<uint32_t>* slot = nullptr;  // in the arena, which must be alive

  // Acquire: the borrower has read what it wanted before it let go.
  bool Returned() const {
    return (slot->load(std::memory_order_acquire) & ~kRingOnReturn) != loan.ticket;
  }

  // False when it is returned already; else the bell will ring when it is.
  bool RingOnReturn() const {
    uint32_t ticket = loan.ticket;
    return slot->compare_exchange_strong(ticket, loan.ticket | kRingOnReturn) ||
           ticket == (loan.ticket | kRingOnReturn);
  }

  // The borrower is known to be dead, or never heard of the loan.
  void Reclaim() const {
    uint32_t ticket = slot->load();
    while ((ticket & ~kRingOnReturn) == loan.ticket &&
           !slot->compare_exchange_weak(ticket, 0)) {
    }
  }
};

struct SharedArenaOptions {
  size_t segment_bytes = size_t{64} << 20;
  // No more than this is ever taken, tensors not counted; memory that is free is used again
  // and never given back.
  size_t max_bytes = size_t{1} << 30;
};

class SharedArena {
 public:
  static std::shared_ptr<SharedArena> Create(const SharedArenaOptions& options);
  ~SharedArena();

  // At least `bytes`, aligned to kBufferAlignment; null when the arena is full, larger
  // than a segment is asked for, or the system has no shared memory. The memory outlives
  // the arena.
  std::shared_ptr<std::byte> Allocate(size_t bytes);

  // The same for a tensor of the program, on pages of its own and of any size: null when the
  // system has no more shared memory. Zeros follow it up to a multiple of kBufferAlignment;
  // its own first contents are not specified.
  std::shared_ptr<std::byte> AllocateTensor(size_t bytes);

  // What keeps the memory of a tensor; null unless these bytes are one, or its first ones
  // up to a multiple of kBufferAlignment.
  std::shared_ptr<const void> KeeperOf(ByteView tensor) const;

  // From here on the tensor that begins with these bytes is ordinary memory with the same
  // contents: whoever borrows of it does not see what is written, and it is not lent any
  // more. A copy takes its place; nobody writes to it meanwhile. Nothing happens when it is
  // no tensor of this arena, or all its loans have been returned. False when there is no
  // memory for the copy, and borrowers go on seeing what is written.
  [[nodiscard]] bool Withdraw(ByteView tensor);

  // Lends memory that came from Allocate() or AllocateTensor(); nullopt when it did not or when too much is
  // lent already. The memory must be kept until it is returned.
  // `bell` is the name of one that RingOnReturn wants to hear.
  std::optional<Lending> Lend(ByteView bytes, uint64_t bell = 0);

  // For a lender that does not want to wait: keeps `owners` until the loan is returned or
  // `borrower_is_gone` says so. Looks when memory is asked for.
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
  // The lent bytes, in place. InvalidArgument when the loan does not name bytes inside of
  // a segment of an arena. The slice may outlive the borrower.
  absl::StatusOr<Slice> Borrow(const Loan& loan);

  // Lets go of segments whose arena is gone. Slices that were borrowed from them keep
  // them. A few microseconds for each segment: whoever borrows calls it now and then.
  void DetachOrphans();
  size_t attached_segments() const { return attached_.size(); }

 private:
  class Attachment;

  absl::StatusOr<std::shared_ptr<Attachment>> AttachmentFor(const Loan& loan);

  const std::shared_ptr<const Ringer> ringer_ = std::make_shared<Ringer>();
  std::map<std::pair<int32_t, uint64_t>, std::shared_ptr<Attachment>> attached_;
};

}  // namespace syncline
