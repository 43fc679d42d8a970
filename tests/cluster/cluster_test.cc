// Tests of what users rely on, over real gRPC and UCX. Worker r pushes the gradient r + 1
// at learning rate 0.5. So a step moves each weight by -0.5 with rank 0 alone, by -1 with
// rank 1 alone, and by -0.75 with both.
#include "tests/cluster/cluster.h"

#include <atomic>
#include <vector>

#include "comm/base/failure.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline::cluster {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr float kFirstAlone = -0.5f;
constexpr float kSecondAlone = -1.0f;
constexpr float kBoth = -0.75f;

// Returns the change of the weights at each step whose weights on both sides are known.
std::vector<float> Moves(const WorkerEnd& end) {
  std::vector<float> moves;
  for (const auto& [step, weight] : end.weight_after) {
    const auto next = end.weight_after.find(step + 1);
    if (next != end.weight_after.end()) moves.push_back(next->second - weight);
  }
  return moves;
}

// Expects the same bits at all steps in which both workers took part.
void ExpectSameWeights(const WorkerEnd& a, const WorkerEnd& b) {
  for (const auto& [step, weight] : a.weight_after) {
    const auto other = b.weight_after.find(step);
    if (other != b.weight_after.end()) {
      EXPECT_EQ(weight, other->second) << step;
    }
  }
}

TEST(Cluster, TwoWorkersTrainAndHoldTheSameWeights) {
  Cluster cluster({.servers = 2});
  // Three tiles, so that both servers and several engines have a part.
  const WorkerPlan plan = {.until = Steps(10), .shape = {3, 65536}};
  Worker first(cluster.Options(0, 2), plan);
  Worker second(cluster.Options(1, 2), plan);
  for (Worker* worker : {&first, &second}) {
    const WorkerEnd& end = worker->End();
    EXPECT_TRUE(end.status.ok()) << end.status;
    EXPECT_TRUE(end.uniform);
    // The first worker that leaves may end the other's last step earlier, but not change
    // it.
    EXPECT_THAT(Moves(end), SizeIs(10));
    EXPECT_THAT(Moves(end), testing::Each(kBoth));
  }
}

TEST(Cluster, OthersGoOnWithoutAWorkerThatLeaves) {
  Cluster cluster({});
  Worker stays(cluster.Options(0, 2), {.until = Steps(30), .last_members = 1});
  Worker leaves(cluster.Options(1, 2), {.until = Steps(10)});
  EXPECT_TRUE(leaves.End().status.ok()) << leaves.End().status;
  const WorkerEnd& end = stays.End();
  EXPECT_TRUE(end.status.ok()) << end.status;
  EXPECT_EQ(end.members, 1u);
  EXPECT_EQ(end.weight_after.at(30), 10 * kBoth + 20 * kFirstAlone);
}

TEST(Cluster, AnotherWorkerTakesTheRankOfOneThatDied) {
  Cluster cluster({.failure_timeout = absl::Seconds(8)});
  std::atomic<bool> enough = false;
  const Until told = [&](uint64_t) { return enough.load(); };
  Worker survivor(cluster.Options(0, 2), {.until = told});
  Worker dies(cluster.Options(1, 2), {.until = Steps(5), .vanish = true});
  EXPECT_TRUE(dies.End().status.ok()) << dies.End().status;
  Worker heir(cluster.Options(1, 2), {.until = told});
  EXPECT_TRUE(heir.AwaitSteps(5));
  enough = true;
  for (Worker* worker : {&survivor, &heir}) {
    EXPECT_TRUE(worker->End().status.ok()) << worker->End().status;
    EXPECT_THAT(Moves(worker->End()),
                testing::Each(testing::AnyOf(kBoth, kFirstAlone, kSecondAlone)));
  }
  EXPECT_THAT(Moves(heir.End()), testing::Contains(kBoth));
  ExpectSameWeights(survivor.End(), heir.End());
}

TEST(Cluster, LateWorkerTakesPartWithTheWeightsOfTheOthers) {
  Cluster cluster({});
  std::atomic<bool> enough = false;
  const Until told = [&](uint64_t) { return enough.load(); };
  Worker early(cluster.Options(0, 1), {.until = told});
  EXPECT_TRUE(early.AwaitSteps(5));
  Worker late(cluster.Options(1, 1), {.until = told});
  EXPECT_TRUE(late.AwaitSteps(5));
  enough = true;
  EXPECT_TRUE(early.End().status.ok()) << early.End().status;
  EXPECT_TRUE(late.End().status.ok()) << late.End().status;
  EXPECT_GE(late.End().weight_after.begin()->first, 5u);
  EXPECT_THAT(Moves(late.End()), testing::Contains(kBoth));
  ExpectSameWeights(early.End(), late.End());
}

TEST(Cluster, RunningJobTakesANewLearningRate) {
  Cluster cluster({});
  std::atomic<bool> enough = false;
  Worker worker(cluster.Options(0, 1),
                {.until = [&](uint64_t) { return enough.load(); }});
  EXPECT_TRUE(worker.AwaitSteps(3));
  const auto refused = cluster.Update("job", {{"beta1", 0.5}});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument)
      << refused.status();
  const auto epoch = cluster.Update("job", {{"lr", 2.0}});
  ASSERT_TRUE(epoch.ok()) << epoch.status();
  EXPECT_GT(*epoch, 1u);
  const uint64_t step = cluster.View().jobs.at(0).step;
  EXPECT_TRUE(cluster.Await([&](const CoordinatorView& view) {
    return view.jobs.at(0).epoch >= *epoch && view.jobs.at(0).step >= step + 3;
  }));
  enough = true;
  const WorkerEnd& end = worker.End();
  EXPECT_TRUE(end.status.ok()) << end.status;
  EXPECT_THAT(Moves(end), testing::Each(testing::AnyOf(kFirstAlone, -2.0f)));
  EXPECT_EQ(Moves(end).front(), kFirstAlone);
  EXPECT_EQ(Moves(end).back(), -2.0f);
}

TEST(Cluster, WorkerWithAnotherShapeIsRefusedAndTheJobGoesOn) {
  Cluster cluster({});
  Worker first(cluster.Options(0, 2), {.until = Steps(5)});
  ASSERT_TRUE(cluster.Await([](const auto& view) { return view.jobs.size() == 1; }));
  Worker wrong(cluster.Options(1, 2), {.until = Steps(5), .shape = {10, 100}});
  EXPECT_EQ(FailureOf(wrong.End().status), Failure::kJobRefused) << wrong.End().status;
  EXPECT_THAT(std::string(wrong.End().status.message()), HasSubstr("weight"));
  Worker right(cluster.Options(1, 2), {.until = Steps(5)});
  EXPECT_TRUE(right.End().status.ok()) << right.End().status;
  EXPECT_TRUE(first.End().status.ok()) << first.End().status;
  EXPECT_EQ(first.End().weight_after.at(5), 5 * kBoth);
}

TEST(Cluster, TwoJobsOnTheSameServersDoNotMix) {
  Cluster cluster({});
  Worker one(cluster.Options(0, 1, "one"), {.until = Steps(20)});
  Worker two(cluster.Options(0, 1, "two"), {.until = Steps(20), .gradient = 8});
  EXPECT_TRUE(one.End().status.ok()) << one.End().status;
  EXPECT_TRUE(two.End().status.ok()) << two.End().status;
  EXPECT_EQ(one.End().weight_after.at(20), 20 * kFirstAlone);
  EXPECT_EQ(two.End().weight_after.at(20), 20 * -4.0f);
}

TEST(Cluster, JobBeginsWhenAllExpectedServersAreThere) {
  Cluster cluster({.servers = 1, .expected_servers = 2});
  Worker worker(cluster.Options(0, 1), {.until = Steps(5), .shape = {8, 65536}});
  ASSERT_TRUE(cluster.Await([](const auto& view) { return view.jobs.size() == 1; }));
  EXPECT_EQ(cluster.View().jobs[0].step, 0u);
  EXPECT_EQ(cluster.View().jobs[0].phase, JobPhase::kWaiting);
  cluster.StartServer();
  EXPECT_TRUE(worker.End().status.ok()) << worker.End().status;
  EXPECT_EQ(worker.End().weight_after.at(5), 5 * kFirstAlone);
}

TEST(Cluster, LostServerEndsTheJobAndTheNextOneRuns) {
  Cluster cluster({.servers = 2});
  Worker worker(cluster.Options(0, 1),
                {.until = [](uint64_t) { return false; }, .shape = {8, 65536}});
  EXPECT_TRUE(worker.AwaitSteps(3));
  cluster.StopServer(0);
  EXPECT_EQ(FailureOf(worker.End().status), Failure::kRetryable) << worker.End().status;
  EXPECT_THAT(worker.End().status.ToString(), HasSubstr("server"));
  cluster.StartServer();
  Worker again(cluster.Options(0, 1), {.until = Steps(5)});
  EXPECT_TRUE(again.End().status.ok()) << again.End().status;
  EXPECT_EQ(again.End().weight_after.at(5), 5 * kFirstAlone);
}

}  // namespace
}  // namespace syncline::cluster
