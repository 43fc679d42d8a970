// Tests what happens when ranks disagree, die, hang, leave or are late. No rank may wait
// forever, and every rank must learn which rank is at fault.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "comm/base/temp_directory.h"
#include "comm/collective/group/group.h"
#include "comm/collective/group/members_test_util.h"
#include "comm/collective/group/shared_memory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline::collective {
namespace {

using testing::HasSubstr;

constexpr size_t kLong = 1 << 18;

struct Disagreement {
  std::string name;
  Call usual;
  Call odd;  // rank 1's call
  std::string says;
  int per_host = 0;  // ranks per host; 0: all on one host
};

std::string NameOf(const testing::TestParamInfo<Disagreement>& info) {
  return info.param.name;
}

class Disagreements : public testing::TestWithParam<Disagreement> {};

TEST_P(Disagreements, AreFoundAndNamed) {
  const Members members = {.ranks = 3, .per_host = GetParam().per_host};
  const auto statuses = RunMembers(members, [](Group& group) {
    std::vector<double> in(3 * kLong);
    std::vector<double> out(3 * kLong);
    Call call = group.rank() == 1 ? GetParam().odd : GetParam().usual;
    call.input = in.data();
    call.output = out.data();
    const absl::Status status = group.Run(call);
    // The group must be unusable afterwards.
    EXPECT_FALSE(group.Run({.op = CollectiveOp::kBarrier}).ok());
    return status;
  });
  int found = 0;
  for (const absl::Status& status : statuses) {
    // Between the other two ranks of an all-to-all nothing is wrong, and a root may have
    // given everything before it learns of the failure.
    const CollectiveOp op = GetParam().usual.op;
    const bool may_end = op == CollectiveOp::kAllToAll || op == CollectiveOp::kBroadcast;
    if (status.ok() && may_end) continue;
    ++found;
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status.message();
    EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().says));
  }
  EXPECT_GT(found, 0);
}

std::vector<Disagreement> Everywhere(int per_host) {
  std::vector<Disagreement> all = {
      Disagreement{"SmallSizes", {.count = 4}, {.count = 5}, "of 5 f32"},
      Disagreement{"LargeSizes", {.count = kLong}, {.count = kLong + 1}, "of 262145"},
      Disagreement{"OneIsSmall", {.count = kLong}, {.count = 1}, "of 1 f32"},
      Disagreement{
          "Types", {.count = kLong}, {.type = ElementType::kF64, .count = kLong}, "f64"},
      Disagreement{"Reductions",
                   {.count = 7},
                   {.reduce = ReduceOp::kMax, .count = 7},
                   "all_reduce (max)"},
      Disagreement{"Operations",
                   {.count = kLong},
                   {.op = CollectiveOp::kBroadcast, .count = kLong},
                   "broadcast number 2"},
      Disagreement{"Roots",
                   {.op = CollectiveOp::kBroadcast, .count = kLong},
                   {.op = CollectiveOp::kBroadcast, .count = kLong, .root = 2},
                   "with root 2"},
      Disagreement{"Labels",
                   {.op = CollectiveOp::kAllGather, .count = 16, .label = "float32"},
                   {.op = CollectiveOp::kAllGather, .count = 16, .label = "int32"},
                   "of 16 f32 (int32)"},
      Disagreement{"Algorithms",
                   {.count = kLong, .algorithm = Algorithm::kRing},
                   {.count = kLong, .algorithm = Algorithm::kTree},
                   "by tree"},
      Disagreement{"SplitSizes",
                   {.op = CollectiveOp::kAllToAll,
                    .send_counts = {9, 9, 9},
                    .receive_counts = {9, 9, 9}},
                   {.op = CollectiveOp::kAllToAll,
                    .send_counts = {9, 9, 8},
                    .receive_counts = {9, 9, 9}},
                   "of 8 f32"}};
  for (Disagreement& one : all) one.per_host = per_host;
  return all;
}

INSTANTIATE_TEST_SUITE_P(Group, Disagreements, testing::ValuesIn(Everywhere(0)), NameOf);
INSTANTIATE_TEST_SUITE_P(Hosts, Disagreements, testing::ValuesIn(Everywhere(1)), NameOf);
INSTANTIATE_TEST_SUITE_P(SomeShare, Disagreements, testing::ValuesIn(Everywhere(2)),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(
    Board, Disagreements,
    testing::Values(  // One of the two is the algorithm that the group would choose.
        Disagreement{
            "OnlyOneAsksForDirect",
            {.count = 4, .timeout = absl::Seconds(20)},
            {.count = 4, .algorithm = Algorithm::kDirect, .timeout = absl::Seconds(20)},
            "through shared memory"},
        Disagreement{
            "OnlyOneAsksForDoubling",
            {.count = 4, .timeout = absl::Seconds(20)},
            {.count = 4, .algorithm = Algorithm::kDoubling, .timeout = absl::Seconds(20)},
            "through shared memory"}),
    NameOf);

// Ranks per host; 0: all on one host.
class FailureNearAndFar : public testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Group, FailureNearAndFar, testing::Values(0, 1, 2));

TEST_P(FailureNearAndFar, WhoeverIsLateIsNamedAtTheDeadline) {
  const auto statuses =
      RunMembers({.ranks = 3, .per_host = GetParam()}, [](Group& group) {
        if (group.rank() == 1) {
          // It is busy with another operation, and must learn of the failure all the
          // same.
          float value = 1;
          return group.Run({.op = CollectiveOp::kSendReceive,
                            .output = &value,
                            .count = 1,
                            .root = 1});
        }
        std::vector<float> values(kLong, 1);
        return group.Run({.output = values.data(),
                          .count = kLong,
                          .timeout = absl::Milliseconds(100)});
      });
  for (const absl::Status& status : statuses) {
    EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status.message();
    EXPECT_EQ(FailedRank(status), 1) << status.message();
  }
}

TEST(GroupFailure, WhoeverGaveItsPartIsNotNamedAtTheDeadline) {
  absl::Notification given;
  absl::Notification over;
  const auto statuses = RunMembers({.ranks = 3, .per_host = 1}, [&](Group& group) {
    float value = 1;
    Call call = {.op = CollectiveOp::kReduce,
                 .input = &value,
                 .output = &value,
                 .count = 1,
                 .algorithm = Algorithm::kDirect};
    if (group.rank() == 0) {
      given.WaitForNotification();
      call.timeout = absl::Milliseconds(100);
    }
    const absl::Status status = group.rank() < 2 ? group.Run(call) : absl::OkStatus();
    if (group.rank() == 1) given.Notify();
    if (group.rank() == 0) over.Notify();
    over.WaitForNotification();
    return status;
  });
  EXPECT_TRUE(absl::IsDeadlineExceeded(statuses[0])) << statuses[0];
  EXPECT_EQ(FailedRank(statuses[0]), 2) << statuses[0];
  EXPECT_TRUE(statuses[1].ok()) << statuses[1];
}

// The sender fills the sockets and then does nothing more.
TEST(GroupFailure, WhatIsDoneArrivesWithoutItsSender) {
  constexpr size_t kWindow = size_t{4} << 20;
  absl::Notification given[2];
  MemoryStore store;
  const Members members = {.ranks = 2, .per_host = 1};
  absl::Status statuses[2];
  const auto member = [&](int rank) {
    GroupOptions options = members.Options("test", rank, &store);
    options.failure_timeout = absl::Seconds(4000);  // beats must not help
    auto group = Group::Create(options);
    if (!group.ok()) {
      statuses[rank] = group.status();
    } else {
      std::vector<std::byte> bytes(kWindow);
      Call call = {.op = CollectiveOp::kReduce,
                   .type = ElementType::kU8,
                   .input = bytes.data(),
                   .output = bytes.data(),
                   .count = kWindow - 4096,
                   .root = 1,
                   .algorithm = Algorithm::kDirect,
                   .timeout = absl::Seconds(30)};
      if (rank == 1) given[0].WaitForNotification();
      statuses[rank] = (*group)->Run(call);
      call = {.op = CollectiveOp::kSendReceive,
              .type = ElementType::kU8,
              .input = bytes.data(),
              .output = bytes.data(),
              .count = kWindow - 4096,
              .root = 1,
              .source = 0,
              .timeout = absl::Seconds(30)};
      statuses[rank].Update((*group)->Run(call));
    }
    given[rank].Notify();
    given[1].WaitForNotification();
  };
  std::thread other([&] { member(1); });
  member(0);
  other.join();
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
}

TEST_P(FailureNearAndFar, WhoeverLeavesIsNamed) {
  const auto statuses =
      RunMembers({.ranks = 3, .per_host = GetParam()}, [](Group& group) -> absl::Status {
        if (group.rank() == 2) return absl::OkStatus();
        std::vector<float> values(kLong, 1);
        return group.Run({.output = values.data(), .count = kLong});
      });
  for (const int rank : {0, 1}) {
    const absl::Status& status = statuses[static_cast<size_t>(rank)];
    EXPECT_TRUE(absl::IsAborted(status)) << status.message();
    EXPECT_EQ(FailedRank(status), 2) << status.message();
    EXPECT_THAT(std::string(status.message()), HasSubstr("has left the group"));
  }
}

TEST_P(FailureNearAndFar, AnAbortEndsEverythingEverywhere) {
  const auto statuses =
      RunMembers({.ranks = 3, .per_host = GetParam()}, [](Group& group) -> absl::Status {
        std::vector<float> values(kLong, 1);
        if (group.rank() == 0) {
          group.Abort();
          return group.Run({.op = CollectiveOp::kBarrier});
        }
        return group.Run({.output = values.data(), .count = kLong});
      });
  for (const absl::Status& status : statuses) {
    EXPECT_TRUE(absl::IsCancelled(status)) << status.message();
  }
}

TEST_P(FailureNearAndFar, TagsThatDifferAreNamed) {
  const auto statuses =
      RunMembers({.ranks = 2, .per_host = GetParam()}, [](Group& group) {
        float value = 1;
        return group.Run({.op = CollectiveOp::kSendReceive,
                          .input = &value,
                          .output = &value,
                          .count = 1,
                          .root = 1,
                          .source = 0,
                          .tag = static_cast<uint32_t>(group.rank() + 4)});
      });
  EXPECT_TRUE(absl::IsFailedPrecondition(statuses[1])) << statuses[1].message();
  EXPECT_THAT(std::string(statuses[1].message()), HasSubstr("with tag 4"));
}

TEST(GroupFailure, WithoutMemoryTheGroupEndsAndNothingElse) {
#ifdef SYNCLINE_SANITIZED
  GTEST_SKIP() << "the sanitizer ends a process that asks for so much";
#endif
  const auto statuses = RunMembers({.ranks = 4}, [](Group& group) {
    if (group.rank() != 2) return group.Run({.op = CollectiveOp::kBarrier});
    float value = 1;
    // With the tree, rank 2 keeps rank 3's values too: more than there are addresses.
    const auto handle = group.Start({.op = CollectiveOp::kScatter,
                                     .output = &value,
                                     .count = size_t{1} << 52,
                                     .algorithm = Algorithm::kTree});
    EXPECT_TRUE(handle.ok());
    return group.Wait(*handle, absl::InfiniteDuration());
  });
  EXPECT_TRUE(absl::IsResourceExhausted(statuses[2])) << statuses[2].message();
  for (const absl::Status& status : statuses) EXPECT_FALSE(status.ok());
}

TEST_P(FailureNearAndFar, ADeadlineCountsWhileElementsMove) {
  const auto statuses =
      RunMembers({.ranks = 2, .per_host = GetParam()}, [](Group& group) {
        std::vector<float> values(64 * kLong, 1);
        absl::Status status;
        // A fast machine may sometimes finish before the deadline is checked.
        for (int i = 0; i < 100 && status.ok(); ++i) {
          status = group.Run({.output = values.data(),
                              .count = values.size(),
                              .timeout = absl::Milliseconds(1)});
        }
        return status;
      });
  for (const absl::Status& status : statuses) {
    EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status.message();
  }
}

absl::StatusOr<std::unique_ptr<Group>> Join(MemoryStore& store, int rank) {
  return Group::Create({.name = "again",
                        .rank = rank,
                        .ranks = 2,
                        .store = &store,
                        .start_timeout = absl::Seconds(60)});
}

std::vector<std::unique_ptr<Group>> JoinBoth(MemoryStore& store) {
  std::vector<std::unique_ptr<Group>> groups(2);
  std::thread other([&] { groups[1] = Join(store, 1).value(); });
  groups[0] = Join(store, 0).value();
  other.join();
  return groups;
}

TEST(GroupMeeting, TheCardOfAnEarlierGroupIsRefused) {
  MemoryStore store;
  auto groups = JoinBoth(store);
  groups[0] = nullptr;
  const absl::Status earlier = Join(store, 0).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(earlier)) << earlier.message();
  EXPECT_EQ(FailedRank(earlier), 1);
  EXPECT_THAT(std::string(earlier.message()), HasSubstr("entry for an earlier group"));
  groups[1] = nullptr;
  const absl::Status ended = Join(store, 0).status();
  EXPECT_TRUE(absl::IsUnavailable(ended)) << ended.message();
  EXPECT_EQ(FailedRank(ended), 1);
}

// The memory still exists, because this process has it open.
TEST(GroupMeeting, TheMemoryOfSomebodyWhoLeftIsRefused) {
  const SharedLayout layout = SharedLayout::For(2);
  auto own = SharedSegment::Create(layout);
  ASSERT_TRUE(own.ok());
  EXPECT_TRUE(SharedSegment::Open((*own)->address(), layout).ok());
  (*own)->header().left = 1;
  EXPECT_TRUE(
      absl::IsUnavailable(SharedSegment::Open((*own)->address(), layout).status()));
  (*own)->header().left = 0;
  const absl::Status other =
      SharedSegment::Open((*own)->address() + "1", layout).status();
  EXPECT_FALSE(other.ok());
  const absl::Status gone = SharedSegment::Open("999999999/1/1", layout).status();
  EXPECT_THAT(std::string(gone.message()), HasSubstr("its process has ended"));
}

TEST(GroupMeeting, AFailureTimeoutThatCannotBeKeptIsRefused) {
  MemoryStore store;
  const absl::Status status =
      Group::Create(
          {.name = "hasty", .store = &store, .failure_timeout = absl::Milliseconds(99)})
          .status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status.message();
}

TEST(FolderStore, AFullDiskIsAnError) {
  const TempDirectory directory;
  std::filesystem::create_symlink("/dev/full", directory.path() + "/key.fresh");
  const absl::Status status = FolderStore(directory.path()).Set("key", "value");
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("No space left"));
}

// Rank 1 gives its part of a reduce and ends; rank 2 calls the reduce long afterwards.
using Fate = std::tuple<int, int>;  // a signal, and ranks per host (0: all on one)

class WhoeverIsDone : public testing::TestWithParam<Fate> {
 protected:
  static constexpr int kRanks = 3;

  // Exits with 0 if its reduce ends as it must.
  [[noreturn]] void Child(int rank) {
    FolderStore store(directory_.path());
    const Members members = {.ranks = kRanks, .per_host = std::get<1>(GetParam())};
    auto group = Group::Create(members.Options("done", rank, &store));
    if (!group.ok()) _exit(2);
    if (rank == 2 && !store.Get("gone", absl::Seconds(60)).ok()) _exit(3);
    // The root must have checked that all are there.
    if (rank == 2) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    std::vector<float> values(10'000, 1);
    const absl::Status status = (*group)->Run({.op = CollectiveOp::kReduce,
                                               .input = values.data(),
                                               .output = values.data(),
                                               .count = values.size(),
                                               .algorithm = Algorithm::kDirect});
    if (!status.ok()) {
      std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
      _exit(1);
    }
    const int signal = std::get<0>(GetParam());
    if (rank == 1 && signal != 0) kill(getpid(), signal);
    *group = nullptr;
    _exit(rank > 0 || values.back() == kRanks ? 0 : 4);
  }

  TempDirectory directory_;
};

TEST_P(WhoeverIsDone, MayGoWhileOthersGoOn) {
  std::vector<pid_t> children;
  for (int rank = 0; rank < kRanks; ++rank) {
    children.push_back(fork());
    if (children.back() == 0) Child(rank);
  }
  waitpid(children[1], nullptr, 0);
  ASSERT_TRUE(FolderStore(directory_.path()).Set("gone", "yes").ok());
  for (const int rank : {0, 2}) {
    int code = 0;
    ASSERT_GT(waitpid(children[static_cast<size_t>(rank)], &code, 0), 0);
    EXPECT_TRUE(WIFEXITED(code) && WEXITSTATUS(code) == 0) << "rank " << rank;
  }
}

INSTANTIATE_TEST_SUITE_P(Group, WhoeverIsDone,
                         testing::Combine(testing::Values(0, SIGKILL),
                                          testing::Values(0, 1, 2)));

// Each rank is a process. The last one is killed or stopped in the middle of an
// all-reduce that never ends by itself.
class Processes : public testing::TestWithParam<Fate> {
 protected:
  static constexpr int kRanks = 3;
  static constexpr absl::Duration kFailureTimeout = absl::Seconds(3);

  // Exits with 0 if the group ends as it must: Aborted, naming the last rank.
  [[noreturn]] void Child(int rank) {
    FolderStore store(directory_.path());
    const Members members = {
        .ranks = kRanks, .per_host = std::get<1>(GetParam()), .missing = 1};
    GroupOptions options = members.Options("processes", rank, &store);
    options.failure_timeout = kFailureTimeout;
    auto group = Group::Create(options);
    if (!group.ok()) _exit(2);
    std::vector<float> values(kLong, 1);
    bool told = false;
    while (true) {
      const absl::Status status =
          (*group)->Run({.output = values.data(), .count = values.size()});
      if (!told) told = store.Set(absl::StrCat("moving", rank), "yes").ok();
      if (status.ok()) continue;
      const bool right = absl::IsAborted(status) && FailedRank(status) == kRanks - 1;
      if (!right) std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
      _exit(right ? 0 : 1);
    }
  }

  TempDirectory directory_;
};

TEST_P(Processes, SurvivorsLearnWhoIsGone) {
  std::vector<pid_t> children;
  for (int rank = 0; rank < kRanks; ++rank) {
    children.push_back(fork());
    if (children.back() == 0) Child(rank);
  }
  FolderStore store(directory_.path());
  for (int rank = 0; rank < kRanks; ++rank) {
    ASSERT_TRUE(store.Get(absl::StrCat("moving", rank), absl::Seconds(60)).ok());
  }
  kill(children.back(), std::get<0>(GetParam()));
  for (int rank = 0; rank + 1 < kRanks; ++rank) {
    int code = 0;
    ASSERT_EQ(waitpid(children[static_cast<size_t>(rank)], &code, 0),
              children[static_cast<size_t>(rank)]);
    EXPECT_TRUE(WIFEXITED(code) && WEXITSTATUS(code) == 0) << "rank " << rank;
  }
  kill(children.back(), SIGKILL);
  waitpid(children.back(), nullptr, 0);
}

INSTANTIATE_TEST_SUITE_P(Group, Processes,
                         testing::Combine(testing::Values(SIGKILL, SIGSTOP),
                                          testing::Values(0, 1, 2)));

}  // namespace
}  // namespace syncline::collective
