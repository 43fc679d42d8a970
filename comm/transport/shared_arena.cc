#include "comm/transport/shared_arena.h"

#include <signal.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <random>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

namespace syncline {
namespace {

constexpr uint64_t kSegmentMagic = 0x31414e4552414c53;  // "SLARENA1"
constexpr uint32_t kSlots = 8192;
constexpr size_t kSmallestBlock = 4096;
constexpr size_t kPageBytes = 4096;

// The first bytes of a segment. A slot holds the ticket of its loan; 0: it is free.
struct SegmentHead {
  std::atomic<uint64_t> magic;  // 0 once the arena is gone
  uint64_t key;
  std::array<std::atomic<uint32_t>, kSlots> slots;
};
static_assert(std::atomic<uint32_t>::is_always_lock_free &&
              std::atomic<uint64_t>::is_always_lock_free);

constexpr size_t RoundUp(size_t value, size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}
constexpr size_t kHeadBytes = RoundUp(sizeof(SegmentHead), 4096);

// Rounds up to sizes that are a quarter of a power of two apart, as BufferPool does.
size_t BlockBytes(size_t bytes) {
  bytes = std::max(bytes, kSmallestBlock);
  return RoundUp(bytes, std::bit_floor(bytes) / 4);
}

// One attached System V segment.
class Mapping {
 public:
  explicit Mapping(int32_t id) : id_(id), memory_(shmat(id, nullptr, 0)) {}
  ~Mapping() {
    if (ok()) shmdt(memory_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  bool ok() const { return memory_ != reinterpret_cast<void*>(-1); }
  // Keeps forked children from inheriting the segment. `bytes` is its size.
  void KeepFromChildren(size_t bytes) { madvise(memory_, bytes, MADV_DONTFORK); }
  int32_t id() const { return id_; }
  SegmentHead& head() const { return *static_cast<SegmentHead*>(memory_); }
  std::byte* at(size_t offset) const { return static_cast<std::byte*>(memory_) + offset; }

 private:
  const int32_t id_;
  void* const memory_;
};

// Makes a segment and removes it from the system's table at once. It exists as long as a
// process is attached.
std::unique_ptr<Mapping> NewSegment(size_t bytes) {
  const int32_t id = shmget(IPC_PRIVATE, bytes, IPC_CREAT | 0600);
  if (id < 0) return nullptr;
  auto mapping = std::make_unique<Mapping>(id);
  shmctl(id, IPC_RMID, nullptr);
  if (!mapping->ok()) return nullptr;
  mapping->KeepFromChildren(bytes);
  std::random_device random;
  mapping->head().key = uint64_t{random()} << 32 | random();
  mapping->head().magic = kSegmentMagic;
  return mapping;
}

}  // namespace

struct SharedArena::State {
  struct Segment {
    std::unique_ptr<Mapping> mapping;
    size_t bytes = 0;
    size_t used = kHeadBytes;
    uint32_t next_slot = 0;
  };
  // Memory of a tensor of the program.
  struct Tensor {
    size_t bytes = 0;
    size_t block_bytes = 0;
    std::weak_ptr<std::byte> memory;
    std::vector<Lending> loans = {};  // loans that may still be out
    bool is_private = false;          // was withdrawn
  };
  // Tensors have segments of their own. Blocks consist of whole pages, and have exactly
  // as many as requested.
  struct Pages {
    std::vector<Segment> segments;
    std::map<size_t, std::vector<std::byte*>> free;
  };
  struct Kept {
    Lending lending;
    Payload owners;
    std::function<bool()> borrower_is_gone;
  };

  explicit State(const SharedArenaOptions& options) : options(options) {}
  // Tells borrowers. A forked child must not: it does not have the segments.
  ~State() {
    if (getpid() != process) return;
    absl::MutexLock lock(&mutex);
    TellBorrowers();
    for (const auto& [place, tensor] : tensors) {
      if (tensor.is_private) munmap(const_cast<std::byte*>(place), tensor.block_bytes);
    }
  }

  // Tells borrowers that no loans will follow. They detach when they have returned all
  // loans that they hold.
  void TellBorrowers() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    for (const auto* all : {&segments, &pages.segments}) {
      for (const Segment& segment : *all) segment.mapping->head().magic = 0;
    }
  }

  std::byte* Take(size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  std::byte* TakePages(size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void GiveBackTensor(std::byte* memory) ABSL_LOCKS_EXCLUDED(mutex);
  Segment* SegmentOf(const std::byte* data) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Records a loan of a tensor, so that Withdraw knows whether it may still be read.
  void NoteLoan(const std::byte* data, const Lending& lending)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  // Releases owners that need not be kept any longer.
  void Sweep() ABSL_LOCKS_EXCLUDED(mutex);

  const SharedArenaOptions options;
  const pid_t process = getpid();
  mutable absl::Mutex mutex;
  std::vector<Segment> segments ABSL_GUARDED_BY(mutex);
  std::map<size_t, std::vector<std::byte*>> free ABSL_GUARDED_BY(mutex);
  Pages pages ABSL_GUARDED_BY(mutex);
  // Keyed by the first byte of each tensor.
  std::map<const std::byte*, Tensor> tensors ABSL_GUARDED_BY(mutex);
  std::vector<Kept> kept ABSL_GUARDED_BY(mutex);
  uint32_t last_ticket ABSL_GUARDED_BY(mutex) = 0;
};

std::byte* SharedArena::State::Take(size_t bytes) {
  std::vector<std::byte*>& shelf = free[bytes];
  if (!shelf.empty()) {
    std::byte* block = shelf.back();
    shelf.pop_back();
    return block;
  }
  for (Segment& segment : segments) {
    if (segment.bytes - segment.used < bytes) continue;
    std::byte* block = segment.mapping->at(segment.used);
    segment.used += bytes;
    return block;
  }
  const size_t segment_bytes = std::max(options.segment_bytes, kHeadBytes + bytes);
  if ((segments.size() + 1) * segment_bytes > options.max_bytes) return nullptr;
  std::unique_ptr<Mapping> mapping = NewSegment(segment_bytes);
  if (mapping == nullptr) return nullptr;
  segments.push_back({std::move(mapping), segment_bytes});
  return Take(bytes);
}

std::byte* SharedArena::State::TakePages(size_t bytes) {
  std::vector<std::byte*>& shelf = pages.free[bytes];
  if (!shelf.empty()) {
    std::byte* block = shelf.back();
    shelf.pop_back();
    return block;
  }
  const bool has_room = !pages.segments.empty() &&
                        pages.segments.back().bytes - pages.segments.back().used >= bytes;
  if (!has_room) {
    const size_t segment_bytes = std::max(options.segment_bytes, kHeadBytes + bytes);
    std::unique_ptr<Mapping> mapping = NewSegment(segment_bytes);
    if (mapping == nullptr) return nullptr;
    pages.segments.push_back({std::move(mapping), segment_bytes});
  }
  Segment& segment = pages.segments.back();
  std::byte* block = segment.mapping->at(segment.used);
  segment.used += bytes;
  return block;
}

void SharedArena::State::GiveBackTensor(std::byte* memory) {
  // A forked child does not have the memory, and may never get the lock.
  if (getpid() != process) return;
  absl::MutexLock lock(&mutex);
  const auto found = tensors.find(memory);
  const size_t bytes = found->second.block_bytes;
  if (!found->second.is_private) {
    tensors.erase(found);
    pages.free[bytes].push_back(memory);
    return;
  }
  found->second.memory.reset();  // the pointer's deleter would keep this state alive
  // The original pages are not used again. The addresses must stay reserved: otherwise
  // other memory could be placed there and be taken for a part of the segment.
  static_cast<void>(mmap(memory, bytes, PROT_NONE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0));
}

SharedArena::State::Segment* SharedArena::State::SegmentOf(const std::byte* data) {
  const auto after = tensors.upper_bound(data);
  const bool is_private =
      after != tensors.begin() && std::prev(after)->second.is_private &&
      data < std::prev(after)->first + std::prev(after)->second.block_bytes;
  if (is_private) return nullptr;
  for (auto* all : {&segments, &pages.segments}) {
    for (Segment& segment : *all) {
      if (data >= segment.mapping->at(kHeadBytes) &&
          data < segment.mapping->at(segment.used)) {
        return &segment;
      }
    }
  }
  return nullptr;
}

void SharedArena::State::NoteLoan(const std::byte* data, const Lending& lending) {
  const auto after = tensors.upper_bound(data);
  if (after == tensors.begin()) return;
  const auto& [place, tensor] = *std::prev(after);
  if (data >= place + tensor.block_bytes) return;
  std::vector<Lending>& loans = std::prev(after)->second.loans;
  // Purges returned loans only when the vector is full. It then holds at most twice as
  // many as were out at once, and not every loan costs a pass over all of them.
  if (loans.size() == loans.capacity()) {
    std::erase_if(loans, [](const Lending& one) { return one.Returned(); });
    loans.reserve(std::max<size_t>(16, 2 * loans.size()));
  }
  loans.push_back(lending);
}

void SharedArena::State::Sweep() {
  // Destroyed after the lock is released: deleters of the payloads take it.
  std::vector<Payload> released;
  absl::MutexLock lock(&mutex);
  std::erase_if(kept, [&](Kept& entry) {
    if (!entry.lending.Returned()) {
      if (!entry.borrower_is_gone()) return false;
      entry.lending.Reclaim();
    }
    released.push_back(std::move(entry.owners));
    return true;
  });
}

std::shared_ptr<SharedArena> SharedArena::Create(const SharedArenaOptions& options) {
  return std::shared_ptr<SharedArena>(new SharedArena(std::make_shared<State>(options)));
}

// No memory can be requested any more, so none will be reused and no owner must be kept.
// Entries must be dropped here, because they hold the state that holds them.
SharedArena::~SharedArena() {
  // Destroyed after the lock is released: deleters of the payloads take it.
  std::vector<State::Kept> kept;
  absl::MutexLock lock(&state_->mutex);
  kept.swap(state_->kept);
  // Tensors of the program may keep the state alive for long.
  if (getpid() == state_->process) state_->TellBorrowers();
}

std::shared_ptr<std::byte> SharedArena::Allocate(size_t bytes) {
  const size_t block_bytes = BlockBytes(bytes);
  state_->Sweep();
  std::byte* block = nullptr;
  {
    absl::MutexLock lock(&state_->mutex);
    block = state_->Take(block_bytes);
  }
  if (block == nullptr) return nullptr;
  return std::shared_ptr<std::byte>(block,
                                    [state = state_, block_bytes](std::byte* memory) {
                                      if (getpid() != state->process) return;
                                      absl::MutexLock lock(&state->mutex);
                                      state->free[block_bytes].push_back(memory);
                                    });
}

std::shared_ptr<std::byte> SharedArena::AllocateTensor(size_t bytes) {
  const size_t block_bytes = RoundUp(std::max<size_t>(bytes, 1), kPageBytes);
  if (block_bytes < bytes) return nullptr;
  state_->Sweep();
  absl::MutexLock lock(&state_->mutex);
  std::byte* const block = state_->TakePages(block_bytes);
  if (block == nullptr) return nullptr;
  std::memset(block + bytes, 0, std::min(block_bytes - bytes, kBufferAlignment));
  std::shared_ptr<std::byte> memory(
      block, [state = state_](std::byte* memory) { state->GiveBackTensor(memory); });
  state_->tensors[block] = {.bytes = bytes, .block_bytes = block_bytes, .memory = memory};
  return memory;
}

std::shared_ptr<const void> SharedArena::KeeperOf(ByteView tensor) const {
  absl::MutexLock lock(&state_->mutex);
  const auto found = state_->tensors.find(tensor.data());
  if (found == state_->tensors.end() || found->second.is_private) return nullptr;
  // Zeros follow a whole tensor. Behind a part of it lie the program's values, so the
  // part must need no padding.
  const bool needs_no_padding = tensor.size() % kBufferAlignment == 0;
  const bool may_be_lent = tensor.size() == found->second.bytes ||
                           (tensor.size() < found->second.bytes && needs_no_padding);
  return may_be_lent ? found->second.memory.lock() : nullptr;
}

// The copy replaces the pages atomically, so that a thread that reads meanwhile sees no
// difference. Borrowers keep the original pages.
bool SharedArena::Withdraw(ByteView tensor) {
  absl::MutexLock lock(&state_->mutex);
  const auto found = state_->tensors.find(tensor.data());
  if (found == state_->tensors.end() || found->second.is_private) return true;
  if (std::ranges::all_of(found->second.loans, &Lending::Returned)) return true;
  const size_t bytes = found->second.block_bytes;
  auto* const place = const_cast<std::byte*>(found->first);
  void* const copy =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (copy == MAP_FAILED) return false;
  std::memcpy(copy, place, bytes);
  // Calls the system directly: UCX replaces mremap by a version that ignores the new
  // address.
  const auto moved =
      syscall(SYS_mremap, copy, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, place);
  if (moved != reinterpret_cast<intptr_t>(place)) {
    munmap(copy, bytes);
    return false;
  }
  found->second.is_private = true;
  return true;
}

std::optional<Lending> SharedArena::Lend(ByteView bytes, uint64_t bell) {
  absl::MutexLock lock(&state_->mutex);
  State::Segment* segment = state_->SegmentOf(bytes.data());
  if (segment == nullptr) return std::nullopt;
  SegmentHead& head = segment->mapping->head();
  Loan loan;
  loan.key = head.key;
  loan.bell = bell;
  loan.segment = segment->mapping->id();
  loan.offset = static_cast<uint64_t>(bytes.data() - segment->mapping->at(0));
  loan.bytes = bytes.size();
  state_->last_ticket = (state_->last_ticket + 1) % kRingOnReturn;
  loan.ticket = std::max<uint32_t>(state_->last_ticket, 1);
  for (uint32_t tried = 0; tried < kSlots; ++tried) {
    loan.slot = segment->next_slot++ % kSlots;
    uint32_t vacant = 0;
    std::atomic<uint32_t>& slot = head.slots[loan.slot];
    if (!slot.compare_exchange_strong(vacant, loan.ticket)) continue;
    const Lending lending{loan, &slot};
    state_->NoteLoan(bytes.data(), lending);
    return lending;
  }
  return std::nullopt;
}

void SharedArena::KeepUntilReturned(const Lending& lending, Payload owners,
                                    std::function<bool()> borrower_is_gone) {
  absl::MutexLock lock(&state_->mutex);
  state_->kept.push_back({lending, std::move(owners), std::move(borrower_is_gone)});
}

size_t SharedArena::taken_bytes() const {
  absl::MutexLock lock(&state_->mutex);
  size_t bytes = 0;
  for (const auto* all : {&state_->segments, &state_->pages.segments}) {
    for (const State::Segment& segment : *all) bytes += segment.bytes;
  }
  return bytes;
}

// A lender's segment, attached by the borrower. Its size never changes, so it is read
// only once.
class SharedBorrower::Attachment {
 public:
  Attachment(int32_t id, std::shared_ptr<const Ringer> ringer)
      : mapping_(id), ringer_(std::move(ringer)) {
    shmid_ds status = {};
    if (!mapping_.ok() || shmctl(id, IPC_STAT, &status) != 0) return;
    bytes_ = status.shm_segsz;
    mapping_.KeepFromChildren(bytes_);
  }

  bool IsArena(uint64_t key) const {
    return bytes_ > kHeadBytes && mapping_.head().magic == kSegmentMagic &&
           mapping_.head().key == key;
  }

  bool Holds(const Loan& loan) const {
    return loan.slot < kSlots && loan.ticket != 0 && loan.ticket < kRingOnReturn &&
           loan.offset >= kHeadBytes && loan.offset <= bytes_ &&
           loan.bytes <= bytes_ - loan.offset;
  }

  // Returns true if the arena or its process is gone. The number of attached processes
  // alone is not enough: several threads of a borrower may each have attached the
  // segment.
  bool IsOrphan() const {
    if (mapping_.head().magic != kSegmentMagic) return true;
    shmid_ds status = {};
    if (shmctl(mapping_.id(), IPC_STAT, &status) != 0) return true;
    return status.shm_nattch <= 1 || (kill(status.shm_cpid, 0) != 0 && errno == ESRCH);
  }

  const std::byte* at(size_t offset) const { return mapping_.at(offset); }

  void Return(const Loan& loan) {
    std::atomic<uint32_t>& slot = mapping_.head().slots[loan.slot];
    // The slot may hold another loan by now, if the lender has reclaimed this one.
    uint32_t ticket = slot.load(std::memory_order_relaxed);
    do {
      if ((ticket & ~kRingOnReturn) != loan.ticket) return;
    } while (!slot.compare_exchange_weak(ticket, 0, std::memory_order_acq_rel));
    if ((ticket & kRingOnReturn) != 0) ringer_->Ring(loan.bell);
  }

 private:
  Mapping mapping_;
  const std::shared_ptr<const Ringer> ringer_;
  size_t bytes_ = 0;
};

absl::StatusOr<Slice> SharedBorrower::Borrow(const Loan& loan) {
  absl::StatusOr<std::shared_ptr<Attachment>> attachment = AttachmentFor(loan);
  if (!attachment.ok()) return attachment.status();
  if (!(*attachment)->Holds(loan)) {
    return absl::InvalidArgumentError("a loan of bytes outside of its segment");
  }
  const std::byte* data = (*attachment)->at(loan.offset);
  std::shared_ptr<const void> owner(data, [loan, attachment = *std::move(attachment)](
                                              const void*) { attachment->Return(loan); });
  return Slice{data, loan.bytes, std::move(owner)};
}

absl::StatusOr<std::shared_ptr<SharedBorrower::Attachment>> SharedBorrower::AttachmentFor(
    const Loan& loan) {
  const auto found = attached_.find({loan.segment, loan.key});
  if (found != attached_.end()) return found->second;
  DetachOrphans();
  auto attachment = std::make_shared<Attachment>(loan.segment, ringer_);
  if (!attachment->IsArena(loan.key)) {
    return absl::InvalidArgumentError(
        absl::StrCat("shared segment ", loan.segment, " is not the lender's arena"));
  }
  attached_[{loan.segment, loan.key}] = attachment;
  return attachment;
}

void SharedBorrower::DetachOrphans() {
  std::erase_if(attached_, [](const auto& entry) { return entry.second->IsOrphan(); });
}

}  // namespace syncline
