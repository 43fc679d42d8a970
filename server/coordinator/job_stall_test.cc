// Standstills are ended, and all members concerned are told why.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "comm/base/failure.h"
#include "server/coordinator/coordinator_test_util.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;

class JobStallTest : public CoordinatorTest {};

// Uneven steps: rank 0 is in a barrier, rank 1 has contributed and waits.
TEST_F(JobStallTest, MemberThatOwesAStepByTheServersWordIsDroppedAndToldWhy) {
  Begin();
  JobProgress progress{.job = 1, .step = 20, .trained = 2};
  progress.members = {{.rank = 0, .owed = 2}, {.rank = 1, .waits = 2}};
  beats_[1].jobs = {progress};
  beats_[11].waiting = true;
  Say(10, BarrierEntered{0});
  PassTimeBeating(kFailureTimeout * 3, {1, 10, 11});
  EXPECT_FALSE(closed_.contains(10));
  EXPECT_THAT(coordinator_->View(now_).jobs.at(0).reason,
              HasSubstr("rank 0 owes step 20"));
  PassTimeBeating(kFailureTimeout * 3, {1, 10, 11});
  ASSERT_TRUE(closed_.contains(10));
  EXPECT_TRUE(absl::IsAborted(closed_[10]));
  EXPECT_THAT(std::string(closed_[10].message()),
              HasSubstr("different numbers of steps"));
  EXPECT_FALSE(closed_.contains(11));
}

TEST_F(JobStallTest, JobThatNothingMovesFailsRetryably) {
  Begin();
  beats_[10].waiting = beats_[11].waiting = true;
  PassTimeBeating(kFailureTimeout * 7, {1, 10, 11});
  ASSERT_TRUE(closed_.contains(10));
  EXPECT_TRUE(absl::IsUnavailable(closed_[10]));
  EXPECT_EQ(FailureOf(closed_[11]), Failure::kRetryable);
}

TEST_F(JobStallTest, ServersThatNeverAnswerFailTheirJobs) {
  for (const int answers : {0, 1, 2}) {  // how many of three questions are answered
    coordinator_ = NewCoordinator();
    closed_.clear();
    told_.clear();
    servers_answer_ = false;
    Begin();
    if (answers > 0) Say(1, JobConfigured{1});
    if (answers > 1) Say(1, EpochPrepared{1, 1, 0});
    PassTimeBeating(kFailureTimeout * 4, {1, 10, 11});
    EXPECT_FALSE(closed_.contains(10));
    PassTimeBeating(kFailureTimeout * 2, {1, 10, 11});
    ASSERT_TRUE(closed_.contains(10)) << answers;
    EXPECT_EQ(FailureOf(closed_[10]), Failure::kRetryable);
    EXPECT_THAT(std::string(closed_[10].message()),
                HasSubstr("server 0 (server1) did not "));
  }
}

// The launcher restarts the rank at once, and it dies before its first contribution,
// again and again.
TEST_F(JobStallTest, WorkerThatDiesOverAndOverWaitsOutside) {
  Begin();
  JobProgress progress{.job = 1, .step = 7, .trained = 2, .completed = 14};
  beats_[1].jobs = {progress};
  PassTimeBeating(absl::Seconds(1), {1, 10});
  Say(11, Disconnected{});
  Hello(12, 1);
  EXPECT_TRUE(Last<WorkerWelcome>(12).has_value()) << "the first successor is let in";
  Say(12, Disconnected{});
  Hello(13, 1);
  EXPECT_FALSE(Last<WorkerWelcome>(13).has_value());
  PassTimeBeating(absl::Seconds(2), {1, 10, 13});
  EXPECT_FALSE(Last<WorkerWelcome>(13).has_value());
  EXPECT_THAT(Last<Waiting>(13)->reason, HasSubstr("without contributing anything"));
  EXPECT_EQ(Last<CommitEpoch>(1)->members.size(), 1u) << "the others go on without it";
  beats_[1].jobs[0].completed = 16;
  PassTimeBeating(absl::Seconds(2), {1, 10, 13});
  EXPECT_TRUE(Last<WorkerWelcome>(13).has_value());
}

TEST_F(JobStallTest, TheOneOutsideIsLetInWhenNobodyIsLeftInside) {
  Begin();
  beats_[1].jobs = {JobProgress{.job = 1, .trained = 2}};
  PassTimeBeating(absl::Seconds(1), {1, 10, 11});
  Say(11, Disconnected{});
  Hello(12, 1);
  Say(12, Disconnected{});
  Hello(13, 1);
  EXPECT_FALSE(Last<WorkerWelcome>(13).has_value());
  Say(10, Leave{});
  PassTimeBeating(absl::Seconds(1), {1, 13});
  EXPECT_TRUE(Last<WorkerWelcome>(13).has_value());
}

}  // namespace
}  // namespace syncline
