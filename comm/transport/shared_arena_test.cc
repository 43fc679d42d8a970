#include "comm/transport/shared_arena.h"

#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <sys/shm.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

ByteView View(const std::shared_ptr<std::byte>& memory, size_t bytes) {
  return {memory.get(), bytes};
}

TEST(SharedArena, MemoryIsAlignedDistinctAndUsedAgain) {
  const auto arena =
      SharedArena::Create({.segment_bytes = 4 * kMiB, .max_bytes = 4 * kMiB});
  std::set<std::byte*> seen;
  {
    std::vector<std::shared_ptr<std::byte>> blocks;
    for (const size_t bytes : {size_t{1}, size_t{4097}, kMiB, kMiB - 1, size_t{70000}}) {
      blocks.push_back(arena->Allocate(bytes));
      ASSERT_NE(blocks.back(), nullptr);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(blocks.back().get()) % kBufferAlignment, 0u);
      std::memset(blocks.back().get(), 0xab, bytes);
      EXPECT_TRUE(seen.insert(blocks.back().get()).second);
    }
  }
  EXPECT_TRUE(seen.contains(arena->Allocate(kMiB).get()));
  EXPECT_EQ(arena->taken_bytes(), 4 * kMiB);
}

TEST(SharedArena, AFullArenaSaysSo) {
  const auto arena =
      SharedArena::Create({.segment_bytes = 2 * kMiB, .max_bytes = 6 * kMiB});
  std::vector<std::shared_ptr<std::byte>> blocks;
  while (auto block = arena->Allocate(kMiB)) blocks.push_back(block);
  EXPECT_EQ(blocks.size(), 3u);  // the segment's head takes a part of the second MiB
  EXPECT_EQ(arena->Allocate(100 * kMiB), nullptr);
  blocks.pop_back();
  EXPECT_NE(arena->Allocate(kMiB), nullptr);
}

// ---- Tensors ----

class ArenaTensors : public ::testing::Test {
 protected:
  static constexpr size_t kBytes = 3 * 4096 - 4;

  Slice Lent(const std::shared_ptr<std::byte>& memory) {
    lending_ = arena_->Lend(View(memory, kBytes));
    EXPECT_TRUE(lending_.has_value());
    return *borrower_.Borrow(lending_->loan);
  }

  const std::shared_ptr<SharedArena> arena_ =
      SharedArena::Create({.segment_bytes = kMiB, .max_bytes = kMiB});
  SharedBorrower borrower_;
  std::optional<Lending> lending_;
};

TEST_F(ArenaTensors, LieOnPagesOfTheirOwnAndDoNotCountAgainstTheLimit) {
  std::vector<std::shared_ptr<std::byte>> tensors;
  for (const size_t bytes : {size_t{0}, size_t{1}, kBytes, 4 * kMiB}) {
    tensors.push_back(arena_->AllocateTensor(bytes));
    ASSERT_NE(tensors.back(), nullptr) << bytes;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensors.back().get()) % 4096, 0u);
    std::memset(tensors.back().get(), 1, bytes);
  }
  EXPECT_NE(arena_->Allocate(kMiB / 2), nullptr);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(tensors[2].get()[kBytes + i], std::byte{0});
}

TEST_F(ArenaTensors, AreKeptByWhoeverReadsThem) {
  std::shared_ptr<std::byte> memory = arena_->AllocateTensor(kBytes);
  std::byte* const place = memory.get();
  std::shared_ptr<const void> keeper = arena_->KeeperOf(View(memory, kBytes));
  ASSERT_NE(keeper, nullptr);
  EXPECT_NE(arena_->KeeperOf(View(memory, 64)), nullptr);
  EXPECT_EQ(arena_->KeeperOf(View(memory, kBytes + 1)), nullptr);
  EXPECT_EQ(arena_->KeeperOf({place + 64, 64}), nullptr);  // another may begin there
  EXPECT_EQ(arena_->KeeperOf(View(arena_->Allocate(kBytes), kBytes)), nullptr);
  memory.reset();
  EXPECT_NE(arena_->AllocateTensor(kBytes).get(), place);
  keeper.reset();
  EXPECT_EQ(arena_->AllocateTensor(kBytes).get(), place);
}

TEST_F(ArenaTensors, HaveZerosAfterThemWhoeverHadTheMemoryBefore) {
  std::byte* const place = arena_->AllocateTensor(4096).get();
  std::memset(place, 1, 4096);
  const auto memory = arena_->AllocateTensor(4096 - 4);
  ASSERT_EQ(memory.get(), place);
  for (size_t i = 4096 - 4; i < 4096; ++i) EXPECT_EQ(place[i], std::byte{0});
}

TEST_F(ArenaTensors, AreHiddenFromBorrowersOnceWithdrawn) {
  std::shared_ptr<std::byte> memory = arena_->AllocateTensor(kBytes);
  std::memset(memory.get(), 1, kBytes);
  const Slice borrowed = Lent(memory);
  memory.get()[0] = std::byte{2};
  EXPECT_EQ(borrowed.data[0], std::byte{2});

  EXPECT_TRUE(arena_->Withdraw(View(memory, 64)));
  EXPECT_EQ(memory.get()[0], std::byte{2});
  EXPECT_EQ(memory.get()[kBytes - 1], std::byte{1});
  std::memset(memory.get(), 3, kBytes);
  EXPECT_EQ(borrowed.data[0], std::byte{2});
  EXPECT_EQ(borrowed.data[kBytes - 1], std::byte{1});
}

TEST_F(ArenaTensors, AreNotLentOnceWithdrawnAndOthersAre) {
  std::shared_ptr<std::byte> memory = arena_->AllocateTensor(kBytes);
  const std::shared_ptr<std::byte> other = arena_->AllocateTensor(kBytes);
  const Slice borrowed = Lent(memory);
  EXPECT_TRUE(arena_->Withdraw(View(memory, kBytes)));
  EXPECT_TRUE(arena_->Withdraw(View(memory, kBytes)));  // it stays withdrawn
  EXPECT_EQ(arena_->KeeperOf(View(memory, kBytes)), nullptr);
  EXPECT_FALSE(arena_->Lend(View(memory, kBytes)).has_value());
  EXPECT_NE(arena_->KeeperOf(View(other, kBytes)), nullptr);
  EXPECT_TRUE(arena_->Lend(View(other, kBytes)).has_value());
  std::byte* const place = memory.get();
  memory.reset();
  EXPECT_NE(arena_->AllocateTensor(kBytes).get(), place);
}

TEST_F(ArenaTensors, StayWhereTheyAreWhenNobodyReadsThem) {
  std::shared_ptr<std::byte> memory = arena_->AllocateTensor(kBytes);
  { const Slice borrowed = Lent(memory); }  // and returned
  EXPECT_TRUE(arena_->Withdraw(View(memory, kBytes)));
  EXPECT_NE(arena_->KeeperOf(View(memory, kBytes)), nullptr);
}

TEST_F(ArenaTensors, AreLentInPartWhereNoPaddingIsNeeded) {
  const std::shared_ptr<std::byte> memory = arena_->AllocateTensor(kBytes);
  for (const size_t bytes : {size_t{60}, size_t{68}, kBytes - 4}) {
    EXPECT_EQ(arena_->KeeperOf(View(memory, bytes)), nullptr) << bytes;
  }
  for (const size_t bytes : {size_t{64}, size_t{4096}, kBytes}) {
    EXPECT_NE(arena_->KeeperOf(View(memory, bytes)), nullptr) << bytes;
  }
}

TEST_F(ArenaTensors, OutliveTheirArena) {
  auto arena = SharedArena::Create({});
  const std::shared_ptr<std::byte> memory = arena->AllocateTensor(kBytes);
  const std::shared_ptr<std::byte> withdrawn = arena->AllocateTensor(kBytes);
  const auto lending = arena->Lend(View(withdrawn, kBytes));
  ASSERT_TRUE(lending.has_value());
  EXPECT_TRUE(arena->Withdraw(View(withdrawn, kBytes)));
  arena.reset();
  std::memset(memory.get(), 1, kBytes);
  std::memset(withdrawn.get(), 1, kBytes);
}

TEST(SharedArena, ALoanIsReadInPlaceAndReturnedByTheLastCopy) {
  const auto arena = SharedArena::Create({});
  const auto memory = arena->Allocate(kMiB);
  std::memset(memory.get(), 7, kMiB);
  const std::optional<Lending> loan = arena->Lend(View(memory, kMiB));
  ASSERT_TRUE(loan.has_value());
  SharedBorrower borrower;
  absl::StatusOr<Slice> slice = borrower.Borrow(loan->loan);
  ASSERT_TRUE(slice.ok()) << slice.status();
  EXPECT_EQ(slice->size, kMiB);
  EXPECT_EQ(std::memcmp(slice->data, memory.get(), kMiB), 0);
  memory.get()[5] = std::byte{9};
  EXPECT_EQ(slice->data[5], std::byte{9}) << "it is a copy";

  Slice copy = *slice;
  slice->owner.reset();
  EXPECT_FALSE(loan->Returned());
  copy.owner.reset();
  EXPECT_TRUE(loan->Returned());
}

TEST(SharedArena, OneMemoryIsLentToManyAndReturnedByEach) {
  const auto arena = SharedArena::Create({});
  const auto memory = arena->Allocate(100);
  const Lending first = *arena->Lend(View(memory, 100)),
                second = *arena->Lend(View(memory, 100));
  SharedBorrower a, b;
  { const auto slice = a.Borrow(first.loan); }
  EXPECT_TRUE(first.Returned());
  EXPECT_FALSE(second.Returned());
  { const auto slice = b.Borrow(second.loan); }
  EXPECT_TRUE(second.Returned());
}

TEST(SharedArena, OnlyItsOwnMemoryIsLent) {
  const auto arena = SharedArena::Create({}), other = SharedArena::Create({});
  const auto memory = arena->Allocate(100);
  EXPECT_FALSE(other->Lend(View(memory, 100)).has_value());
  const Buffer plain = Buffer::Allocate(100);
  EXPECT_FALSE(arena->Lend(plain.view()).has_value());
}

TEST(SharedArena, WhatIsKeptIsNotUsedAgainBeforeItIsReturned) {
  const auto arena =
      SharedArena::Create({.segment_bytes = 2 * kMiB, .max_bytes = 2 * kMiB});
  auto memory = arena->Allocate(kMiB);
  const Lending loan = *arena->Lend(View(memory, kMiB));
  SharedBorrower borrower;
  absl::StatusOr<Slice> slice = borrower.Borrow(loan.loan);
  arena->KeepUntilReturned(loan, {Slice{memory.get(), kMiB, memory}},
                           [] { return false; });
  memory.reset();
  EXPECT_EQ(arena->Allocate(kMiB), nullptr);
  slice->owner.reset();
  EXPECT_NE(arena->Allocate(kMiB), nullptr);
}

TEST(SharedArena, WhatIsKeptForTheDeadIsUsedAgain) {
  const auto arena =
      SharedArena::Create({.segment_bytes = 2 * kMiB, .max_bytes = 2 * kMiB});
  auto memory = arena->Allocate(kMiB);
  const Lending loan = *arena->Lend(View(memory, kMiB));
  bool dead = false;
  arena->KeepUntilReturned(loan, {Slice{memory.get(), kMiB, memory}},
                           [&] { return dead; });
  memory.reset();
  EXPECT_EQ(arena->Allocate(kMiB), nullptr);
  dead = true;
  EXPECT_NE(arena->Allocate(kMiB), nullptr);
  EXPECT_TRUE(loan.Returned());
}

TEST(SharedArena, AReclaimedLoanCannotReturnTheNextOne) {
  const auto arena = SharedArena::Create({});
  const auto memory = arena->Allocate(100);
  const Lending loan = *arena->Lend(View(memory, 100));
  SharedBorrower borrower;
  absl::StatusOr<Slice> late = borrower.Borrow(loan.loan);
  EXPECT_TRUE(loan.RingOnReturn());
  loan.Reclaim();
  EXPECT_TRUE(loan.Returned());
  // Lends once around the ring of slots, so that the same slot is used again.
  std::vector<Lending> loans;
  while (const std::optional<Lending> next = arena->Lend(View(memory, 100)))
    loans.push_back(*next);
  late->owner.reset();
  for (const Lending& next : loans) ASSERT_FALSE(next.Returned());
}

TEST(SharedArena, TheBellRingsWhenAReturnIsWaitedFor) {
  const auto arena = SharedArena::Create({});
  const auto bell = *Bell::Create();
  const auto memory = arena->Allocate(100);
  const Lending quiet = *arena->Lend(View(memory, 100), bell->name());
  const Lending loud = *arena->Lend(View(memory, 100), bell->name());
  SharedBorrower borrower;
  absl::StatusOr<Slice> first = borrower.Borrow(quiet.loan),
                        second = borrower.Borrow(loud.loan);
  EXPECT_TRUE(loud.RingOnReturn());
  EXPECT_TRUE(loud.RingOnReturn());
  EXPECT_FALSE(loud.Returned());
  const auto rings = [&] {
    pollfd descriptor = {bell->fd(), POLLIN, 0};
    return poll(&descriptor, 1, 0) == 1;
  };
  first->owner.reset();
  EXPECT_FALSE(rings());
  EXPECT_FALSE(quiet.RingOnReturn());
  second->owner.reset();
  EXPECT_TRUE(rings());
  EXPECT_TRUE(loud.Returned());
}

TEST(SharedArena, ForgedLoansAreInvalid) {
  const auto arena =
      SharedArena::Create({.segment_bytes = 4 * kMiB, .max_bytes = 8 * kMiB});
  const auto memory = arena->Allocate(kMiB);
  const Lending good = *arena->Lend(View(memory, kMiB));
  SharedBorrower borrower;
  std::vector<Loan> forged(9, good.loan);
  forged[0].key ^= 1;
  forged[1].segment += 1;
  forged[2].offset = 0;
  forged[3].bytes = uint64_t{10} << 30;
  forged[4].bytes = ~uint64_t{0};
  forged[5].offset = ~uint64_t{0} - 100;
  forged[6].slot = 1 << 20;
  forged[7].ticket = 0;
  forged[8].ticket |= kRingOnReturn;
  for (const Loan& loan : forged) {
    EXPECT_EQ(borrower.Borrow(loan).status().code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_FALSE(good.Returned());
  EXPECT_TRUE(borrower.Borrow(good.loan).ok());
}

TEST(SharedArena, AnotherProcessReadsAndReturns) {
  const auto arena = SharedArena::Create({});
  const auto memory = arena->Allocate(kMiB);
  std::memset(memory.get(), 42, kMiB);
  const Lending loan = *arena->Lend(View(memory, kMiB));
  const pid_t child = fork();
  if (child == 0) {
    SharedBorrower borrower;
    const absl::StatusOr<Slice> slice = borrower.Borrow(loan.loan);
    const bool good =
        slice.ok() && std::all_of(slice->data, slice->data + slice->size,
                                  [](std::byte byte) { return byte == std::byte{42}; });
    _exit(good ? 0 : 1);  // without destructors: the slice is not returned
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_FALSE(loan.Returned());
}

// Returns whether a process of another user and group can attach the segment.
bool CanAttachAs(uid_t user, gid_t group, int32_t segment) {
  const pid_t child = fork();
  if (child == 0) {
    const bool is_other = setgroups(0, nullptr) == 0 &&
                          setresgid(group, group, group) == 0 &&
                          setresuid(user, user, user) == 0;
    if (!is_other) _exit(2);
    _exit(shmat(segment, nullptr, SHM_RDONLY) == reinterpret_cast<void*>(-1) ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) != 2);
  return WEXITSTATUS(status) == 1;
}

TEST(SharedArena, IsItsUsersAlone) {
  constexpr uid_t kNobody = 65534;
  const auto arena = SharedArena::Create({});
  const auto memory = arena->Allocate(100);
  const int32_t segment = arena->Lend(View(memory, 100))->loan.segment;
  shmid_ds info = {};
  ASSERT_EQ(shmctl(segment, IPC_STAT, &info), 0);
  EXPECT_EQ(info.shm_perm.mode & 0777, 0600);
  if (geteuid() != 0) GTEST_SKIP() << "becoming another user needs root";
  EXPECT_TRUE(CanAttachAs(geteuid(), getegid(), segment));
  EXPECT_FALSE(CanAttachAs(kNobody, getegid(), segment)) << "another user, same group";
  EXPECT_FALSE(CanAttachAs(kNobody, kNobody, segment)) << "another group";
}

TEST(SharedArena, BorrowedBytesOutliveTheLenderAndNothingStays) {
  absl::StatusOr<Slice> slice = absl::UnknownError("");
  int32_t segment = 0;
  SharedBorrower borrower;
  {
    const auto arena = SharedArena::Create({});
    const auto memory = arena->Allocate(100);
    std::memset(memory.get(), 3, 100);
    const Loan loan = arena->Lend(View(memory, 100))->loan;
    segment = loan.segment;
    slice = borrower.Borrow(loan);
  }
  EXPECT_EQ(slice->data[99], std::byte{3});
  slice = absl::UnknownError("");
  const auto arena = SharedArena::Create({});
  const auto memory = arena->Allocate(100);
  EXPECT_TRUE(borrower.Borrow(arena->Lend(View(memory, 100))->loan).ok());
  // Attaching another segment detached the orphan.
  EXPECT_EQ(borrower.attached_segments(), 1u);
  shmid_ds status = {};
  EXPECT_NE(shmctl(segment, IPC_STAT, &status), 0) << "the segment is still there";
}

TEST(SharedArena, IsLetGoByEveryBorrowerOnceItIsGone) {
  SharedBorrower first;
  SharedBorrower second;
  auto arena = SharedArena::Create({});
  auto memory = arena->Allocate(100);
  const Lending lending = *arena->Lend(View(memory, 100));
  for (SharedBorrower* borrower : {&first, &second}) {
    ASSERT_TRUE(borrower->Borrow(lending.loan).ok());
    borrower->DetachOrphans();
    EXPECT_EQ(borrower->attached_segments(), 1u);
  }
  memory = nullptr;
  arena = nullptr;
  for (SharedBorrower* borrower : {&first, &second}) {
    borrower->DetachOrphans();
    EXPECT_EQ(borrower->attached_segments(), 0u);
  }
}

// Loaders of training data are such children.
TEST(SharedArena, IsNotKeptByForkedChildren) {
  const auto arena = SharedArena::Create({});
  const auto memory = arena->Allocate(100);
  const int32_t segment = arena->Lend(View(memory, 100))->loan.segment;
  int ends[2] = {};
  ASSERT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    close(ends[1]);
    char byte = 0;
    _exit(read(ends[0], &byte, 1) == 0 ? 0 : 1);
  }
  ASSERT_GT(child, 0);
  shmid_ds status = {};
  EXPECT_EQ(shmctl(segment, IPC_STAT, &status), 0);
  EXPECT_EQ(status.shm_nattch, 1u);
  close(ends[1]);
  close(ends[0]);
  int end = 0;
  EXPECT_EQ(waitpid(child, &end, 0), child);
  EXPECT_EQ(end, 0);
}

TEST(SharedArena, OfAKilledProcessIsLetGoThoughOthersAreAttached) {
  int loans[2] = {};
  ASSERT_EQ(pipe(loans), 0);
  const pid_t lender = fork();
  if (lender == 0) {
    const auto arena = SharedArena::Create({});
    const auto memory = arena->Allocate(100);
    const Loan loan = arena->Lend(View(memory, 100))->loan;
    if (write(loans[1], &loan, sizeof loan) != sizeof loan) _exit(1);
    pause();
    _exit(1);
  }
  ASSERT_GT(lender, 0);
  Loan loan;
  ASSERT_EQ(read(loans[0], &loan, sizeof loan), static_cast<ssize_t>(sizeof loan));
  SharedBorrower first;
  SharedBorrower second;
  for (SharedBorrower* borrower : {&first, &second}) {
    ASSERT_TRUE(borrower->Borrow(loan).ok());
  }
  kill(lender, SIGKILL);
  ASSERT_EQ(waitpid(lender, nullptr, 0), lender);
  first.DetachOrphans();
  EXPECT_EQ(first.attached_segments(), 0u);
  close(loans[0]);
  close(loans[1]);
}

}  // namespace
}  // namespace syncline
