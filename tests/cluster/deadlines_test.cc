// Tests of calls that end early, at a deadline or by Cancel.
#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cluster/cluster.h"

namespace syncline::cluster {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

// A worker with one tensor, driven by the test. The session is destroyed first.
struct Member {
  explicit Member(const SessionOptions& options) : session(*Session::Create(options)) {
    EXPECT_TRUE(session->Declare({.name = "w", .shape = {1000}}, weights).ok());
  }
  absl::Status Push() { return session->PushPull(0, gradient, 1); }

  std::vector<float> weights = std::vector<float>(1000);
  const std::vector<float> gradient = std::vector<float>(1000, 1.0f);
  std::unique_ptr<Session> session;
};

// The two workers of a job, started.
struct Couple {
  explicit Couple(Cluster& cluster)
      : first(cluster.Options(0, 2)), second(cluster.Options(1, 2)) {
    std::thread other([this] { EXPECT_TRUE(second.session->Start().ok()); });
    EXPECT_TRUE(first.session->Start().ok());
    other.join();
  }

  Member first;
  Member second;
};

TEST(ClusterDeadlines, AWaitThatWasTooShortIsMadeAgain) {
  Cluster cluster({.servers = 1});
  Couple couple(cluster);
  Session& session = *couple.first.session;
  ASSERT_TRUE(couple.first.Push().ok());
  for (const absl::Duration timeout : {absl::ZeroDuration(), absl::Milliseconds(20)}) {
    for (const absl::Status& early :
         {session.Wait(0, timeout), session.WaitAll(timeout)}) {
      EXPECT_TRUE(absl::IsDeadlineExceeded(early)) << early;
      EXPECT_THAT(std::string(early.message()),
                  AllOf(HasSubstr("tensor 'w'"), HasSubstr("step 1")));
    }
  }
  // The first push is still under way.
  EXPECT_TRUE(absl::IsFailedPrecondition(couple.first.Push()));
  ASSERT_TRUE(couple.second.Push().ok());
  EXPECT_TRUE(session.Wait(0).ok());
  EXPECT_THAT(couple.first.weights, Each(-0.5f));
  EXPECT_TRUE(session.Wait(0, absl::ZeroDuration()).ok()) << "nothing is under way";
}

TEST(ClusterDeadlines, WhatFailedIsReadySoThatNobodyAsksForever) {
  Cluster cluster({.servers = 1});
  Couple couple(cluster);
  Session& session = *couple.first.session;
  EXPECT_TRUE(session.IsReady(0));
  ASSERT_TRUE(couple.first.Push().ok());
  EXPECT_FALSE(session.IsReady(0));
  cluster.StopServer(0);
  EXPECT_FALSE(session.Wait(0).ok());
  EXPECT_TRUE(session.IsReady(0));
}

TEST(ClusterDeadlines, CancelEndsWhatWaitsAndWhatWouldWait) {
  Cluster cluster({.servers = 1});
  Couple couple(cluster);
  Session& session = *couple.first.session;
  EXPECT_TRUE(session.Wait(0).ok());
  ASSERT_TRUE(couple.first.Push().ok());
  std::vector<absl::Status> ended(2);
  std::thread waiter([&] { ended[0] = session.Wait(0); });
  std::thread entrant([&] { ended[1] = session.Barrier(); });
  session.Cancel();
  waiter.join();
  entrant.join();
  for (const absl::Status& status : ended) {
    EXPECT_TRUE(absl::IsCancelled(status)) << status;
  }
  EXPECT_TRUE(absl::IsCancelled(session.WaitAll()));
  session.Uncancel();
  ASSERT_TRUE(couple.second.Push().ok());
  EXPECT_TRUE(session.Wait(0).ok());
  EXPECT_THAT(couple.first.weights, Each(-0.5f));
  // Answers that have arrived are returned, even after Cancel.
  session.Cancel();
  EXPECT_TRUE(session.WaitAll().ok());
  EXPECT_TRUE(session.Leave().ok());
}

TEST(ClusterDeadlines, ABarrierThatWasLeftIsTheSameWhenEnteredAgain) {
  Cluster cluster({.servers = 1});
  Couple couple(cluster);
  Session& session = *couple.first.session;
  EXPECT_TRUE(absl::IsDeadlineExceeded(session.Barrier(absl::Milliseconds(20))));
  EXPECT_TRUE(absl::IsDeadlineExceeded(session.Barrier(absl::ZeroDuration())));
  // One barrier of the other member ends the repeated calls. The next call is a new
  // barrier.
  EXPECT_TRUE(couple.second.session->Barrier().ok());
  EXPECT_TRUE(session.Barrier().ok());
  EXPECT_TRUE(absl::IsDeadlineExceeded(session.Barrier(absl::Milliseconds(20))));
}

TEST(ClusterDeadlines, AnAverageThatNobodyWaitsForIsDropped) {
  Cluster cluster({.servers = 1});
  SessionOptions options = cluster.Options(0, 1);
  options.training.optimizer.values["ema_decay"] = 0.5;
  Member member(options);
  ASSERT_TRUE(member.session->Start().ok());
  std::vector<float> average(1000);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(member.Push().ok());
    ASSERT_TRUE(member.session->Wait(0).ok());
    EXPECT_TRUE(absl::IsDeadlineExceeded(
        member.session->PullAverage(0, average, absl::ZeroDuration())));
  }
  ASSERT_TRUE(member.session->PullAverage(0, average).ok());
  EXPECT_LT(average[0], 0.0f);
}

TEST(ClusterDeadlines, AStartThatIsGivenUpLeavesNothing) {
  Cluster cluster({.servers = 1});
  const auto gathers = [](const auto& view) { return view.jobs.size() == 1; };
  // The reason is not "was lost", as for a silent worker.
  const auto is_gone = [](const auto& view) {
    return std::ranges::all_of(
        view.jobs, [](const auto& job) { return job.reason == "all workers left"; });
  };
  {
    Member alone(cluster.Options(0, 2));
    absl::Status status;
    std::thread starter([&] { status = alone.session->Start(); });
    EXPECT_TRUE(cluster.Await(gathers));
    alone.session->Cancel();
    starter.join();
    EXPECT_TRUE(absl::IsCancelled(status)) << status;
    EXPECT_TRUE(cluster.Await(is_gone));
  }
  Member late(cluster.Options(0, 2));
  const absl::Status status = late.session->Start(absl::Seconds(1));
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("waiting for worker 2 of 2"));
  EXPECT_TRUE(cluster.Await(is_gone));
}

}  // namespace
}  // namespace syncline::cluster
