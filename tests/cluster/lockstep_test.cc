// Tests of jobs with two tensors: every step needs a gradient or a Skip of both.
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "comm/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cluster/cluster.h"

namespace syncline::cluster {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

// A worker of such a job. The session is destroyed first, because its threads use the
// rest.
struct Pair {
  explicit Pair(const SessionOptions& options) : session(*Session::Create(options)) {
    ids = {*session->Declare({.name = "generator", .shape = {100}}, weights[0]),
           *session->Declare({.name = "discriminator", .shape = {70000}}, weights[1])};
  }

  absl::Status Push(size_t tensor) {
    return session->PushPull(ids[tensor], gradients[tensor], 1);
  }

  std::vector<float> weights[2] = {std::vector<float>(100), std::vector<float>(70000)};
  const std::vector<float> gradients[2] = {std::vector<float>(100, 1.0f),
                                           std::vector<float>(70000, 1.0f)};
  std::vector<TensorId> ids;
  std::unique_ptr<Session> session;
};

TEST(Lockstep, ATensorDoesNotRunAheadOfTheOthers) {
  Cluster cluster({.servers = 1});
  Pair worker(cluster.Options(0, 1));
  ASSERT_TRUE(worker.session->Start().ok());
  ASSERT_TRUE(worker.Push(0).ok());
  ASSERT_TRUE(worker.session->Wait(worker.ids[0]).ok());
  EXPECT_EQ(worker.session->step(), 0u);
  for (const absl::Status& refused :
       {worker.Push(0), worker.session->Skip(worker.ids[0])}) {
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()),
                AllOf(HasSubstr("'generator' is pushed for step 1"),
                      HasSubstr("'discriminator' was pushed for step 0")));
  }
  // The session continues.
  ASSERT_TRUE(worker.Push(1).ok());
  EXPECT_EQ(worker.session->step(), 1u);
  ASSERT_TRUE(worker.Push(0).ok());
  ASSERT_TRUE(worker.session->WaitAll().ok());
  EXPECT_THAT(worker.weights[0], Each(-1.0f));
  EXPECT_THAT(worker.weights[1], Each(-0.5f));
}

TEST(Lockstep, SkipsAreTakenAllOrNone) {
  Cluster cluster({.servers = 1});
  Pair worker(cluster.Options(0, 1));
  ASSERT_TRUE(worker.session->Start().ok());
  const auto skip = [&](std::vector<TensorId> tensors) {
    return worker.session->Skip(tensors);
  };
  EXPECT_TRUE(absl::IsInvalidArgument(skip({0, 7})));
  EXPECT_TRUE(absl::IsInvalidArgument(skip({0, 1, 0})));
  ASSERT_TRUE(skip({0, 1}).ok());
  EXPECT_EQ(worker.session->step(), 1u);
  ASSERT_TRUE(worker.session->WaitAll().ok());
  ASSERT_TRUE(worker.Push(0).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(skip({1, 0})));
  ASSERT_TRUE(worker.Push(1).ok());
  ASSERT_TRUE(worker.session->WaitAll().ok());
  EXPECT_THAT(worker.weights[0], Each(-0.5f));
  EXPECT_THAT(worker.weights[1], Each(-0.5f));
}

TEST(Lockstep, SumsOnTheWorkerTakeSkipsAsPushes) {
  Cluster cluster({.servers = 1});
  SessionOptions options = cluster.Options(0, 1);
  options.training.accumulate_steps = 2;
  options.training.accumulate_on = TrainingOptions::Accumulate::kWorker;
  Pair worker(options);
  ASSERT_TRUE(worker.session->Start().ok());
  // Push one gradient of one tensor, and none of the other.
  ASSERT_TRUE(worker.Push(0).ok());
  for (const TensorId id : {0u, 1u, 1u}) ASSERT_TRUE(worker.session->Skip(id).ok());
  EXPECT_EQ(worker.session->step(), 1u);
  ASSERT_TRUE(worker.session->WaitAll().ok());
  EXPECT_THAT(worker.weights[0], Each(-0.5f));
  EXPECT_THAT(worker.weights[1], Each(0.0f));
}

TEST(Lockstep, AnOptimizerThatNeedsEveryGradientTakesNoSkip) {
  Cluster cluster({.servers = 1});
  SessionOptions options = cluster.Options(0, 1);
  options.training.optimizer = {.name = "lbfgs", .values = {{"lr", 1.0}}};
  Pair worker(options);
  ASSERT_TRUE(worker.session->Start().ok());
  const absl::Status refused = worker.session->Skip(worker.ids[0]);
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("push zeros"));
}

// Trains the tensors in turns, like a generator and a discriminator, and checks that the
// other tensor does not change.
absl::Status Alternate(Pair& worker, const Until& until) {
  SYNCLINE_RETURN_IF_ERROR(worker.session->Start());
  while (!until(worker.session->step())) {
    const size_t trained = worker.session->step() % 2;
    const size_t resting = 1 - trained;
    const std::vector<float> before[2] = {worker.weights[0], worker.weights[1]};
    SYNCLINE_RETURN_IF_ERROR(worker.Push(trained));
    SYNCLINE_RETURN_IF_ERROR(worker.session->Skip(worker.ids[resting]));
    SYNCLINE_RETURN_IF_ERROR(worker.session->WaitAll());
    if (worker.weights[resting] != before[resting] ||
        worker.weights[trained] == before[trained]) {
      return absl::InternalError("the wrong tensor was trained");
    }
  }
  return worker.session->Leave();
}

TEST(Lockstep, AWorkerJoinsAJobWhoseTensorsAreTrainedInTurns) {
  Cluster cluster({});
  std::atomic<bool> enough = false;
  Pair early(cluster.Options(0, 1));
  absl::Status early_end;
  std::thread thread(
      [&] { early_end = Alternate(early, [&](uint64_t) { return enough.load(); }); });
  ASSERT_TRUE(cluster.Await(
      [](const auto& view) { return view.jobs.size() == 1 && view.jobs[0].step >= 3; }));
  Pair late(cluster.Options(1, 1));
  uint64_t joined = 0;
  const absl::Status late_end = Alternate(late, [&](uint64_t step) {
    if (joined == 0) joined = step;
    return step >= joined + 4;
  });
  enough = true;
  thread.join();
  EXPECT_TRUE(late_end.ok()) << late_end;
  EXPECT_TRUE(early_end.ok()) << early_end;
  EXPECT_GE(joined, 3u);
}

}  // namespace
}  // namespace syncline::cluster
