// What happens when ranks disagree, die, hang, leave or are late: nobody waits forever,
// and everybody learns whose fault it is.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/base/temp_directory.h"
#include "comm/collective/group/group.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using testing::HasSubstr;

constexpr size_t kLong = 1 << 20;

// What each rank's body returns, when all run as threads.
std::vector<absl::Status> RunRanks(int ranks,
                                   const std::function<absl::Status(Group&)>& body) {
  MemoryStore store;
  std::vector<absl::Status> statuses(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      auto group =
          Group::Create({.name = "test", .rank = rank, .ranks = ranks, .store = &store});
      ASSERT_TRUE(group.ok()) << group.status().message();
      statuses[static_cast<size_t>(rank)] = body(**group);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return statuses;
}

struct Disagreement {
  std::string name;
  Call usual;
  Call odd;  // of rank 1
  std::string says;
};

class Disagreements : public testing::TestWithParam<Disagreement> {};

TEST_P(Disagreements, AreFoundAndNamed) {
  const auto statuses = RunRanks(3, [](Group& group) {
    std::vector<double> in(3 * kLong);
    std::vector<double> out(3 * kLong);
    Call call = group.rank() == 1 ? GetParam().odd : GetParam().usual;
    call.input = in.data();
    call.output = out.data();
    const absl::Status status = group.Run(call);
    // And the group is of no use afterwards.
    EXPECT_FALSE(group.Run({.op = CollectiveOp::kBarrier}).ok());
    return status;
  });
  int found = 0;
  for (const absl::Status& status : statuses) {
    // Between the other two ranks of an all-to-all nothing is wrong.
    if (status.ok() && GetParam().usual.op == CollectiveOp::kAllToAll) continue;
    ++found;
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status.message();
    EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().says));
  }
  EXPECT_GT(found, 0);
}

INSTANTIATE_TEST_SUITE_P(
    Group, Disagreements,
    testing::Values(
        Disagreement{"SmallSizes", {.count = 4}, {.count = 5}, "of 5 f32"},
        Disagreement{"LargeSizes", {.count = kLong}, {.count = kLong + 1}, "of 1048577"},
        Disagreement{"OneIsSmall", {.count = kLong}, {.count = 1}, "of 1 f32"},
        Disagreement{"Types",
                     {.count = kLong},
                     {.type = ElementType::kF64, .count = kLong},
                     "f64"},
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
                     "of 8 f32"}),
    [](const auto& info) { return info.param.name; });

TEST(GroupFailure, WhoeverIsLateIsNamedAtTheDeadline) {
  const auto statuses = RunRanks(3, [](Group& group) {
    if (group.rank() == 1) {
      // Is busy with something else, and hears of it all the same.
      float value = 1;
      return group.Run(
          {.op = CollectiveOp::kSendReceive, .output = &value, .count = 1, .root = 1});
    }
    std::vector<float> values(kLong, 1);
    return group.Run(
        {.output = values.data(), .count = kLong, .timeout = absl::Milliseconds(100)});
  });
  for (const absl::Status& status : statuses) {
    EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status.message();
    EXPECT_EQ(FailedRank(status), 1) << status.message();
  }
}

TEST(GroupFailure, WhoeverLeavesIsNamed) {
  const auto statuses = RunRanks(3, [](Group& group) -> absl::Status {
    if (group.rank() == 2) return absl::OkStatus();
    std::vector<float> values(kLong, 1);
    return group.Run({.output = values.data(), .count = kLong});
  });
  for (const int rank : {0, 1}) {
    const absl::Status& status = statuses[static_cast<size_t>(rank)];
    EXPECT_TRUE(absl::IsAborted(status)) << status.message();
    EXPECT_EQ(FailedRank(status), 2) << status.message();
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank 2 has left"));
  }
}

TEST(GroupFailure, AnAbortEndsEverythingEverywhere) {
  const auto statuses = RunRanks(3, [](Group& group) -> absl::Status {
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

TEST(GroupFailure, TagsThatDifferAreNamed) {
  const auto statuses = RunRanks(2, [](Group& group) {
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

TEST(GroupFailure, WhatMakesNoSenseIsRefusedAndNothingBegins) {
  RunRanks(2, [](Group& group) {
    float value = 1;
    EXPECT_TRUE(absl::IsInvalidArgument(
        group.Run({.op = CollectiveOp::kBroadcast, .output = &value, .root = 2})));
    EXPECT_TRUE(absl::IsInvalidArgument(group.Run({.count = 1})));
    EXPECT_TRUE(absl::IsUnimplemented(
        group.Run({.op = CollectiveOp::kReduce, .algorithm = Algorithm::kRing})));
    return group.Run({.op = CollectiveOp::kBarrier});
  });
}

// Each rank is a process; what happens to the last one happens in the middle of an
// all-reduce that never ends by itself.
class Processes : public testing::TestWithParam<int> {
 protected:
  static constexpr int kRanks = 3;

  // Exits with 0 when the group ends as it must: Aborted, naming the last rank.
  [[noreturn]] void Child(int rank) {
    FolderStore store(directory_.path());
    auto group = Group::Create({.name = "processes",
                                .rank = rank,
                                .ranks = kRanks,
                                .store = &store,
                                .failure_timeout = absl::Milliseconds(300)});
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
  kill(children.back(), GetParam());
  for (int rank = 0; rank + 1 < kRanks; ++rank) {
    int code = 0;
    ASSERT_EQ(waitpid(children[static_cast<size_t>(rank)], &code, 0),
              children[static_cast<size_t>(rank)]);
    EXPECT_TRUE(WIFEXITED(code) && WEXITSTATUS(code) == 0) << "rank " << rank;
  }
  kill(children.back(), SIGKILL);
  waitpid(children.back(), nullptr, 0);
}

INSTANTIATE_TEST_SUITE_P(Group, Processes, testing::Values(SIGKILL, SIGSTOP),
                         [](const auto& info) {
                           return info.param == SIGKILL ? "Killed" : "Stopped";
                         });

}  // namespace
}  // namespace syncline
