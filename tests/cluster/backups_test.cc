// Tests of servers with two engines each, and their backups in each other's memory.
#include <algorithm>
#include <atomic>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cluster/cluster.h"

namespace syncline::cluster {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kSteps = 120;
const std::vector<uint64_t> kSpread = {1'000'000};  // blocks on all shards

SessionOptions WithBackups(const Cluster& cluster, uint32_t rank) {
  SessionOptions options = cluster.Options(rank, 2);
  options.settings.durability = "peer";
  return options;
}

TEST(Backups, AServerThatEndsIsReplacedAndNoStepIsLost) {
  Cluster cluster({.servers = 3});
  Worker first(WithBackups(cluster, 0), {.until = Steps(kSteps), .shape = kSpread});
  Worker second(WithBackups(cluster, 1), {.until = Steps(kSteps), .shape = kSpread});
  ASSERT_TRUE(first.AwaitSteps(20));
  cluster.StopServer(1);
  for (Worker* worker : {&first, &second}) {
    const WorkerEnd& end = worker->End();
    EXPECT_EQ(end.status, absl::OkStatus());
    EXPECT_TRUE(end.uniform);
    // Each step is half of the mean of 1 and 2.
    EXPECT_EQ(end.weight_after.at(kSteps), -0.75f * static_cast<float>(kSteps));
  }
}

bool AllHaveBackups(const CoordinatorView& view) {
  const auto is_there = [](const BackupView& backup) { return backup.lost.empty(); };
  return !view.jobs.empty() && view.jobs[0].phase == JobPhase::kRunning &&
         std::ranges::all_of(view.jobs[0].backups, is_there);
}

// A third server joins, and all servers hold backups of each other from then on.
TEST(Backups, ThereIsANewOneWhileTheJobGoesOn) {
  Cluster cluster({.servers = 3});
  std::atomic<uint64_t> last = ~uint64_t{0};
  std::atomic<uint64_t> reached = 0;
  const auto until = [&](uint64_t step) {
    reached = std::max<uint64_t>(reached, step);
    return step >= last;
  };
  Worker first(WithBackups(cluster, 0), {.until = until, .shape = kSpread});
  Worker second(WithBackups(cluster, 1), {.until = until, .shape = kSpread});
  ASSERT_TRUE(first.AwaitSteps(20));
  cluster.StopServer(1);
  ASSERT_TRUE(cluster.Await([&](const CoordinatorView& view) {
    return view.jobs.at(0).backups.at(1).server != 1 && AllHaveBackups(view);
  }));
  cluster.StopServer(2);
  ASSERT_TRUE(cluster.Await([](const CoordinatorView& view) {
    const JobView& job = view.jobs.at(0);
    return job.phase == JobPhase::kRunning && job.backups.at(2).server != 2;
  }));
  last = reached + 20;  // the workers are at most one step apart
  for (Worker* worker : {&first, &second}) {
    const WorkerEnd& end = worker->End();
    EXPECT_EQ(end.status, absl::OkStatus());
    EXPECT_TRUE(end.uniform);
    EXPECT_EQ(end.weight_after.at(last), -0.75f * static_cast<float>(last));
  }
}

TEST(Backups, TheSecondOfTwoServersCarriesTheJobAlone) {
  Cluster cluster({.servers = 2});
  Worker first(WithBackups(cluster, 0), {.until = Steps(kSteps), .shape = kSpread});
  Worker second(WithBackups(cluster, 1), {.until = Steps(kSteps), .shape = kSpread});
  ASSERT_TRUE(second.AwaitSteps(5));
  cluster.StopServer(0);
  EXPECT_EQ(first.End().status, absl::OkStatus());
  EXPECT_EQ(first.End().weight_after.at(kSteps), -0.75f * static_cast<float>(kSteps));
  EXPECT_EQ(second.End().status, absl::OkStatus());
}

TEST(Backups, WithoutAnyTheJobEndsAndSaysWhy) {
  Cluster cluster({.servers = 2, .failure_timeout = absl::Seconds(4)});
  Worker first(WithBackups(cluster, 0), {.until = Steps(100'000), .shape = kSpread});
  Worker second(WithBackups(cluster, 1), {.until = Steps(100'000), .shape = kSpread});
  ASSERT_TRUE(second.AwaitSteps(5));
  cluster.StopServer(0);
  ASSERT_TRUE(cluster.Await([](const CoordinatorView& view) {
    return view.jobs.at(0).reason.find("took the place") != std::string::npos;
  }));
  cluster.StopServer(1);
  EXPECT_THAT(std::string(first.End().status.message()), HasSubstr("is lost, and"));
  EXPECT_FALSE(second.End().status.ok());
}

}  // namespace
}  // namespace syncline::cluster
