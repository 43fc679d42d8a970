#include "comm/collective/nccl/nccl_group.h"

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "comm/base/temp_directory.h"
#include "comm/collective/nccl/nccl_members_test_util.h"

namespace syncline::collective {
namespace {

using ::testing::HasSubstr;

constexpr size_t kLong = 100'000;

// Runs an all-reduce of ones, and checks the result if it succeeds.
absl::Status SumOnes(NcclGroup& group, int ranks, Call call = {}) {
  std::vector<float> values(call.count > 0 ? call.count : 1000, 1);
  call.output = values.data();
  call.count = values.size();
  const absl::Status status = RunCall(group, call);
  if (status.ok()) {
    EXPECT_EQ(values.back(), ranks);
  }
  return status;
}

using HoldFn = void(void* stream);
using ReleaseFn = void();

TEST(NcclGroup, WaitsForWhatTheStreamDidBefore) {
  void* const library = dlopen(SYNCLINE_TEST_FAKE_GPU, RTLD_NOW);
  ASSERT_NE(library, nullptr);
  auto* const hold = reinterpret_cast<HoldFn*>(dlsym(library, "FakeGpuHold"));
  auto* const release = reinterpret_cast<ReleaseFn*>(dlsym(library, "FakeGpuRelease"));
  const auto statuses = RunOnNccl({}, [&](NcclGroup& group, int rank) {
    EXPECT_TRUE(SumOnes(group, 2).ok());
    const auto gpu = Gpu::Open(SYNCLINE_TEST_FAKE_GPU, rank);
    const Gpu::Current current(**gpu);
    void* const stream = (*gpu)->MakeStream().value();
    if (rank == 0) hold(stream);
    std::vector<float> values(100, 1);
    const auto handle =
        group.Start({.output = values.data(), .count = values.size()}, stream);
    EXPECT_TRUE(handle.ok()) << handle.status();
    const absl::Status early =
        group.Wait(*handle, absl::Milliseconds(rank == 0 ? 50 : 0));
    if (rank == 0) {
      EXPECT_TRUE(absl::IsDeadlineExceeded(early));
      EXPECT_FALSE(group.IsDone(*handle));
      EXPECT_EQ(values[0], 1);
      release();
    }
    const absl::Status status = group.Wait(*handle, absl::InfiniteDuration());
    EXPECT_EQ(values[99], 2);
    return status;
  });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
}

TEST(NcclGroup, ManyOperationsAreUnderWayAtOnce) {
  const auto statuses = RunOnNccl({.ranks = 3}, [](NcclGroup& group, int rank) {
    std::vector<std::vector<float>> values;
    std::vector<NcclGroup::Handle> handles;
    for (size_t i = 0; i < 200; ++i) {
      values.emplace_back(100 + i, static_cast<float>(rank) + static_cast<float>(i));
      const Call call = {.output = values.back().data(), .count = values.back().size()};
      handles.push_back(group.Start(call, nullptr).value());
    }
    absl::Status status;
    for (size_t i = 0; i < 200; ++i) {
      status.Update(group.Wait(handles[i], absl::InfiniteDuration()));
      EXPECT_EQ(values[i].back(), static_cast<float>(3 + 3 * i));
    }
    return status;
  });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
}

struct Reason {
  std::string name;
  std::string says;
  std::string fate = {};
  std::function<void(int rank, NcclGroupOptions& options)> change =
      [](int, NcclGroupOptions&) {};
};
void PrintTo(const Reason& reason, std::ostream* out) { *out << reason.name; }

class NoNcclGroup : public testing::TestWithParam<Reason> {};

TEST_P(NoNcclGroup, IsFormedAndAllRanksSayWhy) {
  const ScopedVariable fate("FAKE_NCCL", GetParam().fate);
  const auto statuses = RunOnNccl({.ranks = 3, .change = GetParam().change},
                                  [](NcclGroup&, int) { return absl::OkStatus(); });
  for (const absl::Status& status : statuses) {
    EXPECT_TRUE(absl::IsUnimplemented(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().says));
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, NoNcclGroup,
    testing::Values(
        Reason{"SameGpu", "ranks 0 and 2 are on the same GPU", "",
               [](int rank, NcclGroupOptions& options) { options.device = rank % 2; }},
        Reason{"OneDoesNotWantIt", "rank 1: SYNCLINE_NCCL=0", "",
               [](int rank, NcclGroupOptions& options) {
                 if (rank == 1) options.why_not = "SYNCLINE_NCCL=0";
               }},
        Reason{"OneHasNoLibrary", "rank 2: no NCCL: libnccl_not_there.so", "",
               [](int rank, NcclGroupOptions& options) {
                 if (rank == 2) options.library = "libnccl_not_there.so";
               }},
        Reason{"OneHasNoDevice", "rank 0: no CUDA device 77", "",
               [](int rank, NcclGroupOptions& options) {
                 if (rank == 0) options.device = 77;
               }},
        Reason{"ExactOrder", "rank 0: NCCL has no exact order of ranks", "",
               [](int, NcclGroupOptions& options) { options.group.exact_order = true; }},
        Reason{"NcclDoesNotStart", "NCCL", "1:init:0"}),
    [](const testing::TestParamInfo<Reason>& info) { return info.param.name; });

TEST(NcclGroup, TheGroupBesideItGoesOnWithoutNccl) {
  MemoryStore store;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      const GroupOptions options = Members{.ranks = 2}.Options("test", rank, &store);
      const auto group = Group::Create(options);
      ASSERT_TRUE(group.ok());
      EXPECT_FALSE(NcclGroup::Create(OnStandIn(options, 0), **group).ok());
      EXPECT_TRUE((*group)->Run({.op = CollectiveOp::kBarrier}).ok());
      NcclGroupOptions again = OnStandIn(options, rank);
      again.group.name = "again";
      EXPECT_TRUE(NcclGroup::Create(again, **group).ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(NcclGroup, WhatHangsEndsAtItsDeadline) {
  const ScopedVariable fate("FAKE_NCCL", "1:hang:2");
  const auto statuses = RunOnNccl({}, [](NcclGroup& group, int) {
    EXPECT_TRUE(SumOnes(group, 2).ok());
    return SumOnes(group, 2, {.timeout = absl::Milliseconds(300)});
  });
  for (const absl::Status& status : statuses) {
    EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("all_reduce (sum) number 2 of 1000 f32 over NCCL was called by "
                          "all ranks, but did not end in time"));
  }
}

TEST(NcclGroup, WhoeverDoesNotComeIsNamed) {
  absl::Notification over;
  const auto statuses = RunOnNccl({.ranks = 3}, [&](NcclGroup& group, int rank) {
    EXPECT_TRUE(SumOnes(group, 3).ok());
    if (rank == 1) {
      over.WaitForNotification();
      return absl::OkStatus();
    }
    // The deadline of the others must not come first.
    const absl::Status status = SumOnes(
        group, 3, {.timeout = rank == 0 ? absl::Seconds(2) : absl::InfiniteDuration()});
    if (rank == 0) over.Notify();
    return status;
  });
  for (const size_t rank : {0, 2}) {
    EXPECT_TRUE(absl::IsDeadlineExceeded(statuses[rank])) << statuses[rank];
    EXPECT_EQ(FailedRank(statuses[rank]), 1) << statuses[rank];
    EXPECT_THAT(std::string(statuses[rank].message()),
                HasSubstr("rank 1 did not take part in all_reduce (sum) number 2"));
  }
}

TEST(NcclGroup, AReceiverThatDoesNotComeIsNamed) {
  absl::Notification over;
  const auto statuses = RunOnNccl({}, [&](NcclGroup& group, int rank) {
    std::vector<float> values(kLong);
    if (rank == 1) {
      over.WaitForNotification();
      return absl::OkStatus();
    }
    const absl::Status status = RunCall(group, {.op = CollectiveOp::kSendReceive,
                                                .input = values.data(),
                                                .count = kLong,
                                                .root = 1,
                                                .timeout = absl::Milliseconds(200)});
    over.Notify();
    return status;
  });
  EXPECT_TRUE(absl::IsDeadlineExceeded(statuses[0])) << statuses[0];
  EXPECT_EQ(FailedRank(statuses[0]), 1);
}

TEST(NcclGroup, DifferentCallsAreNamedOnBothSides) {
  const auto statuses = RunOnNccl({}, [](NcclGroup& group, int rank) {
    std::vector<float> values(1000, 1);
    std::vector<float> whole(2000);
    if (rank == 0) {
      return RunCall(group, {.output = values.data(), .count = values.size()});
    }
    return RunCall(group, {.op = CollectiveOp::kGather,
                           .input = values.data(),
                           .output = whole.data(),
                           .count = values.size(),
                           .root = 1});
  });
  for (size_t rank = 0; rank < 2; ++rank) {
    const absl::Status& status = statuses[rank];
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("all_reduce (sum) number 1"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("gather number 1 of 1000 f32"));
  }
}

// NCCL compares nothing, so these operations finish, with wrong results.
TEST(NcclGroup, DifferentSizesAreFoundAfterwards) {
  const auto statuses = RunOnNccl({}, [](NcclGroup& group, int rank) {
    std::vector<float> values(20, 1);
    absl::Status status;
    while (status.ok()) {
      status = RunCall(group, {.output = values.data(), .count = rank == 0 ? 10u : 20u});
    }
    return status;
  });
  for (const absl::Status& status : statuses) {
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  }
}

TEST(NcclGroup, AnErrorOfNcclNamesItsRankOnAll) {
  const ScopedVariable fate("FAKE_NCCL", "1:error:2");
  const auto statuses = RunOnNccl({.ranks = 3}, [](NcclGroup& group, int) {
    EXPECT_TRUE(SumOnes(group, 3).ok());
    return SumOnes(group, 3);
  });
  for (const absl::Status& status : statuses) {
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_EQ(FailedRank(status), 1) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("NCCL failed on rank 1 (asynchronously): internal error"));
  }
}

// The error is about a connection; the other ranks may know which rank ended.
TEST(NcclGroup, AnErrorOfTheNetworkIsNcclsWhereNobodyIsGone) {
  const ScopedVariable fate("FAKE_NCCL", "1:system:2");
  const auto statuses =
      RunOnNccl({.failure_timeout = absl::Milliseconds(200)}, [](NcclGroup& group, int) {
        EXPECT_TRUE(SumOnes(group, 2).ok());
        return SumOnes(group, 2);
      });
  for (const absl::Status& status : statuses) {
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("system error"));
  }
}

TEST(NcclGroup, AnErrorOfTheNetworkIsOfWhoeverIsGone) {
  const ScopedVariable fate("FAKE_NCCL", "1:system:2");
  absl::Notification begun;
  const auto statuses = RunOnNccl({.ranks = 3}, [&](NcclGroup& group, int rank) {
    EXPECT_TRUE(SumOnes(group, 3).ok());
    if (rank == 2) {
      begun.WaitForNotification();
      return absl::OkStatus();  // and leaves the group
    }
    std::vector<float> values(1000, 1);
    const auto handle = group.Start({.output = values.data(), .count = 1000}, nullptr);
    if (rank == 1) begun.Notify();
    return handle.ok() ? group.Wait(*handle, absl::InfiniteDuration()) : handle.status();
  });
  for (const size_t rank : {0, 1}) {
    EXPECT_TRUE(absl::IsAborted(statuses[rank])) << statuses[rank];
    EXPECT_EQ(FailedRank(statuses[rank]), 2) << statuses[rank];
  }
}

TEST(NcclGroup, WhoeverLeavesIsNamedInWhatNeedsIt) {
  const auto statuses =
      RunOnNccl({.failure_timeout = absl::Seconds(2)}, [](NcclGroup& group, int rank) {
        const absl::Status status = SumOnes(group, 2);
        return rank == 1 ? status : SumOnes(group, 2);
      });
  EXPECT_TRUE(statuses[1].ok()) << statuses[1];
  EXPECT_TRUE(absl::IsAborted(statuses[0])) << statuses[0];
  EXPECT_EQ(FailedRank(statuses[0]), 1);
  EXPECT_THAT(std::string(statuses[0].message()), HasSubstr("has left the group"));
}

// The others need only what this rank gave, although they have not finished yet.
TEST(NcclGroup, WhoeverIsDoneMayLeave) {
  const ScopedVariable fate("FAKE_NCCL", "0:slow:2");
  const auto statuses = RunOnNccl({.ranks = 3}, [](NcclGroup& group, int) {
    EXPECT_TRUE(SumOnes(group, 3).ok());
    return SumOnes(group, 3);
  });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
}

TEST(NcclGroup, WhoeverLeavesEndsFirstWhatIsUnderWay) {
  const auto statuses = RunOnNccl({.ranks = 2}, [](NcclGroup& group, int rank) {
    std::vector<float> values(1000, 1);
    absl::Status status = SumOnes(group, 2);
    const auto handle = group.Start({.output = values.data(), .count = 1000}, nullptr);
    if (rank == 1) group.Leave();
    status.Update(handle.ok() ? group.Wait(*handle, absl::InfiniteDuration())
                              : handle.status());
    EXPECT_EQ(values[999], 2);
    if (rank == 1) {
      EXPECT_TRUE(absl::IsFailedPrecondition(SumOnes(group, 2)));
    }
    return status;
  });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
}

TEST(NcclGroup, AnAbortEndsEverythingEverywhere) {
  const auto statuses = RunOnNccl({.ranks = 3}, [](NcclGroup& group, int rank) {
    EXPECT_TRUE(SumOnes(group, 3).ok());
    if (rank == 0) {
      group.Abort();
      EXPECT_TRUE(absl::IsCancelled(group.status()));
    }
    return SumOnes(group, 3);
  });
  for (const absl::Status& status : statuses) {
    EXPECT_TRUE(absl::IsCancelled(status)) << status;
  }
}

TEST(NcclGroup, WhatIsUnderWayAtItsEndIsCancelled) {
  std::vector<float> given(1000, 1);
  const auto statuses = RunOnNccl({}, [&](NcclGroup& group, int rank) {
    EXPECT_TRUE(SumOnes(group, 2).ok());
    if (rank == 1) return SumOnes(group, 2, {.count = kLong});
    return group
        .Start({.op = CollectiveOp::kSendReceive,
                .output = given.data(),
                .count = given.size(),
                .root = 0,
                .source = 1},
               nullptr)
        .status();
  });
  EXPECT_TRUE(statuses[0].ok());
  EXPECT_TRUE(absl::IsCancelled(statuses[1])) << statuses[1];
}

// Each rank is a process with its own GPU. The last one is killed or stopped while
// operations run.
class NcclProcesses : public testing::TestWithParam<int> {
 protected:
  static constexpr int kRanks = 3;

  [[noreturn]] void Child(int rank) {
    FolderStore store(directory_.path());
    GroupOptions options = Members{.ranks = kRanks}.Options("processes", rank, &store);
    options.failure_timeout = absl::Seconds(3);
    auto group = Group::Create(options);
    if (!group.ok()) _exit(2);
    auto nccl = NcclGroup::Create(OnStandIn(options, rank), **group);
    if (!nccl.ok()) _exit(3);
    auto gpu = Gpu::Open(SYNCLINE_TEST_FAKE_GPU, rank);
    const Gpu::Current current(**gpu);
    void* const stream = (*gpu)->MakeStream().value();
    std::vector<float> values(kLong, 1);
    bool told = false;
    while (true) {
      const absl::Status status = RunCall(
          **nccl, {.reduce = ReduceOp::kMax, .output = values.data(), .count = kLong},
          stream);
      if (!told) told = store.Set(absl::StrCat("moving", rank), "yes").ok();
      if (status.ok()) continue;
      const bool right = absl::IsAborted(status) && FailedRank(status) == kRanks - 1;
      if (!right) std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
      *nccl = nullptr;
      *group = nullptr;
      _exit(right ? 0 : 1);
    }
  }

  TempDirectory directory_;
};

TEST_P(NcclProcesses, SurvivorsLearnWhoIsGone) {
  std::vector<pid_t> children;
  for (int rank = 0; rank < kRanks; ++rank) {
    children.push_back(fork());
    if (children.back() == 0) Child(rank);
  }
  FolderStore store(directory_.path());
  for (int rank = 0; rank < kRanks; ++rank) {
    ASSERT_TRUE(store.Get(absl::StrCat("moving", rank), absl::Seconds(60)).ok());
  }
  kill(children.back(), GetParam());
  for (int rank = 0; rank + 1 < kRanks; ++rank) {
    int code = 0;
    ASSERT_GT(waitpid(children[static_cast<size_t>(rank)], &code, 0), 0);
    EXPECT_TRUE(WIFEXITED(code) && WEXITSTATUS(code) == 0) << "rank " << rank;
  }
  kill(children.back(), SIGKILL);
  waitpid(children.back(), nullptr, 0);
}

INSTANTIATE_TEST_SUITE_P(Group, NcclProcesses, testing::Values(SIGKILL, SIGSTOP));

}  // namespace
}  // namespace syncline::collective
