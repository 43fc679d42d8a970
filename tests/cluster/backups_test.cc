// Servers with two engines each, and their backups in each other's memory.
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
  options.durability = "peer";
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
    // Half of the mean of 1 and 2 at each step.
    EXPECT_EQ(end.weight_after.at(kSteps), -0.75f * static_cast<float>(kSteps));
  }
  int lost = 0;
  const CoordinatorView view = cluster.View();
  for (const BackupView& backup : view.jobs.at(0).backups) {
    lost += backup.lost.empty() ? 0 : 1;
  }
  EXPECT_EQ(lost, 2) << "that of the place, and that which was on its host";
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
