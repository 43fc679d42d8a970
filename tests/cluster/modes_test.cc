// Tests of jobs whose workers need not wait for each other at every step.
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "comm/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cluster/cluster.h"

namespace syncline::cluster {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

struct Worker {
  explicit Worker(const SessionOptions& options) : session(*Session::Create(options)) {
    id = *session->Declare({.name = "weights", .shape = {1000}}, weights);
  }
  absl::Status Step() {
    SYNCLINE_RETURN_IF_ERROR(session->PushPull(id, gradient, 1));
    return session->Wait(id, kAWhile);
  }

  static constexpr absl::Duration kAWhile = absl::Seconds(20);
  std::vector<float> weights = std::vector<float>(1000);
  const std::vector<float> gradient = std::vector<float>(1000, 1.0f);
  TensorId id = 0;
  std::unique_ptr<Session> session;
};

SessionOptions WithMode(SessionOptions options, NamedOptions mode,
                        NamedOptions optimizer = {}) {
  options.training.mode = std::move(mode);
  if (!optimizer.name.empty()) options.training.optimizer = std::move(optimizer);
  return options;
}

// Two workers that have joined a job in one mode.
struct TwoWorkers {
  explicit TwoWorkers(const NamedOptions& mode, const NamedOptions& optimizer = {})
      : fast(WithMode(cluster.Options(0, 2), mode, optimizer)),
        slow(WithMode(cluster.Options(1, 2), mode, optimizer)) {
    std::thread other([this] { EXPECT_EQ(slow.session->Start(), absl::OkStatus()); });
    EXPECT_EQ(fast.session->Start(), absl::OkStatus());
    other.join();
  }

  Cluster cluster{{.servers = 1}};
  Worker fast;
  Worker slow;
};

// Calls Leave on a thread of its own.
class Leaver {
 public:
  explicit Leaver(Session& session)
      : thread_([this, &session] {
          EXPECT_EQ(session.Leave(), absl::OkStatus());
          left_.Notify();
        }) {}
  ~Leaver() {
    if (thread_.joinable()) thread_.join();
  }

  bool HasLeftSoon() const {
    return left_.WaitForNotificationWithTimeout(absl::Milliseconds(300));
  }
  void Join() { thread_.join(); }

 private:
  absl::Notification left_;
  std::thread thread_;
};

TEST(StaleSynchronous, ASlowWorkerIsWaitedForAtTheBoundOnly) {
  TwoWorkers job({.name = "ssp", .values = {{"staleness", 2}}});
  ASSERT_EQ(job.fast.Step(), absl::OkStatus());
  ASSERT_EQ(job.fast.Step(), absl::OkStatus());
  ASSERT_EQ(job.fast.session->PushPull(job.fast.id, job.fast.gradient, 1),
            absl::OkStatus());
  EXPECT_TRUE(absl::IsDeadlineExceeded(
      job.fast.session->Wait(job.fast.id, absl::Milliseconds(200))))
      << "three steps ahead";
  ASSERT_EQ(job.slow.Step(), absl::OkStatus());
  EXPECT_EQ(job.fast.session->Wait(job.fast.id, Worker::kAWhile), absl::OkStatus());
}

TEST(StaleSynchronous, AnUpdateLetsAWaitingWorkerRunAheadAndTakesItBack) {
  TwoWorkers job({.name = "ssp", .values = {{"staleness", 0}}});
  ASSERT_EQ(job.fast.session->PushPull(job.fast.id, job.fast.gradient, 1),
            absl::OkStatus());
  const auto set = [&](double staleness) {
    const auto epoch = job.cluster.Update(
        "job", {}, {.name = "ssp", .values = {{"staleness", staleness}}});
    ASSERT_TRUE(epoch.ok()) << epoch.status();
    for (Worker* worker : {&job.fast, &job.slow}) {
      ASSERT_TRUE(job.cluster.Await([&](const CoordinatorView&) {
        return worker->session->Stats().epoch >= *epoch;
      }));
    }
  };
  set(1);
  EXPECT_EQ(job.fast.session->Wait(job.fast.id, Worker::kAWhile), absl::OkStatus())
      << "one step ahead";
  set(0);
  ASSERT_EQ(job.fast.session->PushPull(job.fast.id, job.fast.gradient, 1),
            absl::OkStatus());
  ASSERT_EQ(job.slow.Step(), absl::OkStatus());
  EXPECT_TRUE(absl::IsDeadlineExceeded(
      job.fast.session->Wait(job.fast.id, absl::Milliseconds(200))))
      << "it waits for the step that it has pushed";
  ASSERT_EQ(job.slow.Step(), absl::OkStatus());
  EXPECT_EQ(job.fast.session->Wait(job.fast.id, Worker::kAWhile), absl::OkStatus());
  EXPECT_THAT(job.fast.weights, Each(-1.0f)) << "two steps of 0.5, of both";
  EXPECT_EQ(job.cluster.View().jobs.at(0).mode, "ssp:staleness=0");
}

TEST(StaleSynchronous, WhoeverLeavesHandsOverWhatOthersHaveYetToComeTo) {
  TwoWorkers job({.name = "ssp", .values = {{"staleness", 2}}});
  for (int step = 0; step < 2; ++step) ASSERT_EQ(job.fast.Step(), absl::OkStatus());
  Leaver leaver(*job.fast.session);
  for (int step = 0; step < 2; ++step) ASSERT_EQ(job.slow.Step(), absl::OkStatus());
  leaver.Join();
  ASSERT_EQ(job.slow.session->Barrier(Worker::kAWhile), absl::OkStatus());
  EXPECT_THAT(job.slow.weights, Each(-1.0f)) << "two steps of 0.5, of both";
  EXPECT_THAT(job.fast.weights, Each(-1.0f));
}

TEST(StaleSynchronous, WhoeverLeavesRightAfterAPushHandsItOver) {
  TwoWorkers job({.name = "ssp", .values = {{"staleness", 2}}});
  ASSERT_EQ(job.fast.Step(), absl::OkStatus());
  ASSERT_EQ(job.fast.session->PushPull(job.fast.id, job.fast.gradient, 1),
            absl::OkStatus());
  Leaver leaver(*job.fast.session);
  EXPECT_FALSE(leaver.HasLeftSoon())
      << "the servers hold two steps of it that are not made";
  for (int step = 0; step < 2; ++step) ASSERT_EQ(job.slow.Step(), absl::OkStatus());
  leaver.Join();
  ASSERT_EQ(job.slow.session->Barrier(Worker::kAWhile), absl::OkStatus());
  EXPECT_THAT(job.slow.weights, Each(-1.0f)) << "two steps of 0.5, of both";
  EXPECT_THAT(job.fast.weights, Each(-1.0f));
}

TEST(Synchronous, WhoeverLeavesRightAfterAPushHandsItOverToAllBlocks) {
  TwoWorkers job({.name = "bsp"});
  ASSERT_EQ(job.fast.session->PushPull(job.fast.id, job.fast.gradient, 1),
            absl::OkStatus());
  Leaver leaver(*job.fast.session);
  EXPECT_FALSE(leaver.HasLeftSoon()) << "its push is part of no step yet";
  const std::vector<float> threes(1000, 3.0f);
  ASSERT_EQ(job.slow.session->PushPull(job.slow.id, threes, 1), absl::OkStatus());
  ASSERT_EQ(job.slow.session->Wait(job.slow.id, Worker::kAWhile), absl::OkStatus());
  leaver.Join();
  EXPECT_THAT(job.slow.weights, Each(-1.0f)) << "a step of 0.5, of the mean of both";
  EXPECT_THAT(job.fast.weights, Each(-1.0f));
}

TEST(StaleSynchronous, ABarrierBringsTheNewestWeights) {
  TwoWorkers job({.name = "ssp", .values = {{"staleness", 2}}});
  for (int step = 0; step < 2; ++step) ASSERT_EQ(job.fast.Step(), absl::OkStatus());
  EXPECT_THAT(job.fast.weights, Each(0.0f));
  std::thread other([&] {
    for (int step = 0; step < 2; ++step) EXPECT_EQ(job.slow.Step(), absl::OkStatus());
    EXPECT_EQ(job.slow.session->Barrier(Worker::kAWhile), absl::OkStatus());
  });
  ASSERT_EQ(job.fast.session->Barrier(Worker::kAWhile), absl::OkStatus());
  other.join();
  EXPECT_THAT(job.fast.weights, Each(-1.0f));
  EXPECT_THAT(job.slow.weights, Each(-1.0f));
}

TEST(StaleSynchronous, AnOptimizersStateIsThatAfterAllStepsOfWhoeverAsks) {
  TwoWorkers job({.name = "ssp", .values = {{"staleness", 2}}},
                 {.name = "sgd", .values = {{"lr", 0.5}, {"momentum", 0.5}}});
  for (int step = 0; step < 2; ++step) ASSERT_EQ(job.fast.Step(), absl::OkStatus());
  std::vector<float> momentum(1000);
  const auto pull = [&](absl::Duration timeout) {
    return job.fast.session->PullState({.tensor = job.fast.id}, momentum, timeout);
  };
  EXPECT_TRUE(absl::IsDeadlineExceeded(pull(absl::Milliseconds(200)).status()))
      << "the other one has not come to these steps";
  for (int step = 0; step < 2; ++step) ASSERT_EQ(job.slow.Step(), absl::OkStatus());
  const auto updates = pull(Worker::kAWhile);
  ASSERT_TRUE(updates.ok()) << updates.status();
  EXPECT_EQ(*updates, 2u);
  EXPECT_THAT(momentum, Each(1.5f));
  EXPECT_THAT(job.fast.weights, Each(-1.25f)) << "those that it belongs to";
}

TEST(Asynchronous, AnOptimizersStateIsOfNoStep) {
  TwoWorkers job({.name = "asp"});
  std::vector<float> out(1000);
  const absl::Status refused =
      job.fast.session->PullState({.tensor = job.fast.id}, out).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused));
  EXPECT_THAT(refused.message(), HasSubstr("mode asp"));
}

TEST(Asynchronous, NobodyWaitsForAWorkerThatDoesNothing) {
  TwoWorkers job({.name = "asp"});
  for (int step = 0; step < 5; ++step) ASSERT_EQ(job.fast.Step(), absl::OkStatus());
  EXPECT_THAT(job.fast.weights, Each(-2.5f));
  ASSERT_EQ(job.slow.Step(), absl::OkStatus());
  EXPECT_THAT(job.slow.weights, Each(-3.0f));
  EXPECT_EQ(job.slow.session->step(), 1u);
  std::thread other(
      [&] { EXPECT_EQ(job.slow.session->Barrier(Worker::kAWhile), absl::OkStatus()); });
  ASSERT_EQ(job.fast.session->Barrier(Worker::kAWhile), absl::OkStatus());
  other.join();
  EXPECT_THAT(job.fast.weights, Each(-3.0f)) << "what the other one gave";
}

TEST(Modes, WhatDoesNotGoTogetherIsRefusedWithTheReason) {
  Cluster cluster({.servers = 1});
  SessionOptions options =
      WithMode(cluster.Options(0, 1), {.name = "ssp", .values = {{"staleness", 2}}});
  options.settings.publish_codec = "onebit:min_elements=0,vectors=1";
  Worker worker(options);
  const absl::Status refused = worker.session->Start(Worker::kAWhile);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("in mode 'ssp:staleness=2' not every worker holds"));
  options.training.mode.values["staleness"] = -1;
  EXPECT_THAT(std::string(Session::Create(options).status().message()),
              HasSubstr("staleness is -1, but must be a whole number in [0, 64]"));
}

}  // namespace
}  // namespace syncline::cluster
