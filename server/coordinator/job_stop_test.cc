// A launcher that was told to end gives up its own ranks and nothing else.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "comm/base/failure.h"
#include "server/coordinator/coordinator_restart_test_util.h"
#include "server/coordinator/coordinator_test_util.h"

namespace syncline {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::StartsWith;

class JobStop : public CoordinatorTest {
 protected:
  static LauncherStop StopOf(const std::vector<uint32_t>& ranks) {
    return {.job = "job",
            .run_id = "run",
            .ranks = ranks,
            .why = "SIGINT (Ctrl-C)",
            .host = "a"};
  }
  void HelloOfNext(ConnectionId connection, uint32_t rank) {
    SayHello(connection, TwoTensors(2), {.rank = rank, .run_id = "next", .name = "next"});
  }
  JobView Shown() const { return coordinator_->View(now_).jobs.at(0); }
};

TEST_F(JobStop, FreesTheNameOnceTheStreamsOfItsWorkersHaveEnded) {
  Begin();
  ASSERT_TRUE(Call(StopOf({0, 1})).status.ok());
  EXPECT_THAT(Said(EventKind::kExit),
              ElementsAre("ranks 0, 1 are being stopped: SIGINT (Ctrl-C) to the launcher "
                          "at a, run run"));
  EXPECT_EQ(Shown().phase, JobPhase::kRunning) << "they may have things to say";
  Say(10, Disconnected{});
  Say(11, Disconnected{});
  EXPECT_EQ(Shown().phase, JobPhase::kOver);
  EXPECT_EQ(Shown().reason, "stopped by SIGINT (Ctrl-C) to the launcher at a, run run");
  EXPECT_THAT(Said(EventKind::kDeath), IsEmpty());
  EXPECT_THAT(Said(EventKind::kLeave),
              Contains("worker 1 (worker1) was stopped with its launcher"));
  EXPECT_THAT(Said(EventKind::kEnd), ElementsAre(StartsWith("the job is over: stopped")));
  HelloOfNext(20, 0);
  HelloOfNext(21, 1);
  EXPECT_TRUE(Last<WorkerWelcome>(20).has_value());
  EXPECT_TRUE(Last<WorkerWelcome>(21).has_value());
}

// A GAN has two jobs, and its launcher knows the first one only.
TEST_F(JobStop, FreesTheNamesOfAllSessionsOfAProgram) {
  AttachServer(1);
  ConnectionId connection = 10;
  for (const char* name : {"job", "job-2", "job-11", "job-1", "job-b", "jobs", "jo"}) {
    JobSpec job = TwoTensors(1);
    job.name = name;
    SayHello(connection++, job, {.run_id = "run", .name = "a:7"});
  }
  JobSpec of_another = TwoTensors(1);
  of_another.name = "job-3";
  SayHello(connection++, of_another, {.run_id = "another", .name = "job-3"});
  ASSERT_TRUE(Call(StopOf({0})).status.ok());
  while (connection > 10) Say(--connection, Disconnected{});
  std::vector<std::string> over;
  for (const JobView& job : coordinator_->View(now_).jobs) {
    if (job.phase == JobPhase::kOver) over.push_back(job.name);
  }
  EXPECT_THAT(over, ElementsAre("job", "job-11", "job-2"));
}

// Another user chose the name "job-2" and the same run id.
TEST_F(JobStop, LeavesAJobAloneThatOnlyLooksLikeTheProgramsNextSession) {
  AttachServer(1);
  ConnectionId connection = 10;
  for (const char* where : {"job a:7", "job-2 b:8", "job-3 a:9", "job-4 ab:9"}) {
    const std::pair<std::string, std::string> of = absl::StrSplit(where, ' ');
    JobSpec job = TwoTensors(1);
    job.name = of.first;
    SayHello(connection++, job, {.run_id = "run", .name = of.second});
  }
  LauncherStop stop = StopOf({0});
  stop.of_this_job_alone = true;  // by a worker's certificate
  ASSERT_TRUE(Call(stop).status.ok());
  EXPECT_EQ(Said(EventKind::kExit).size(), 1u);
  ASSERT_TRUE(Call(StopOf({0})).status.ok());
  EXPECT_EQ(Said(EventKind::kExit).size(), 3u) << "job again, and job-3";
}

TEST_F(JobStop, OfAProgramWhoseFirstSessionIsClosedEndsTheOthers) {
  Begin();
  JobSpec second = TwoTensors(1);
  second.name = "job-2";
  SayHello(20, second, {.run_id = "run", .name = "a:20"});
  for (const ConnectionId worker : {10, 11}) Say(worker, Leave{});
  ASSERT_TRUE(Call(StopOf({0, 1})).status.ok());
  Say(20, Disconnected{});
  EXPECT_THAT(Said(EventKind::kEnd), Contains(StartsWith("the job is over: stopped")));
}

TEST_F(JobStop, MayBeHeardOfAfterTheStreamsHaveEnded) {
  Begin();
  Say(10, Disconnected{});
  Say(11, Disconnected{});
  PassTimeBeating(kFailureTimeout, {1});  // they count as dead, and may come back
  EXPECT_EQ(Shown().phase, JobPhase::kRunning);
  ASSERT_TRUE(Call(StopOf({0, 1})).status.ok());
  EXPECT_EQ(Shown().phase, JobPhase::kOver);
}

TEST_F(JobStop, OfOneHostLeavesTheOthersRanks) {
  Begin();
  ASSERT_TRUE(Call(StopOf({1})).status.ok());
  Say(11, Disconnected{});
  ASSERT_EQ(Shown().members.size(), 1u);
  EXPECT_EQ(Shown().members[0].rank, 0u);
  EXPECT_EQ(Last<EpochChanged>(10)->members, 1u) << "nobody waits for its grace";
  PassTimeBeating(10 * kFailureTimeout, {1, 10});
  EXPECT_EQ(Shown().phase, JobPhase::kRunning);
  HelloOfNext(20, 0);
  EXPECT_EQ(FailureOf(closed_[20]), Failure::kJobRefused);
}

TEST_F(JobStop, WaitsForRanksOfOthersThatMayComeBack) {
  Begin();
  Say(10, Disconnected{});  // of another host, whose launcher may start it again
  PassTimeBeating(kFailureTimeout / 2, {1, 11});
  ASSERT_TRUE(Call(StopOf({1})).status.ok());
  Say(11, Disconnected{});
  EXPECT_EQ(Shown().phase, JobPhase::kRunning);
  Hello(12, 0);
  EXPECT_TRUE(Last<WorkerWelcome>(12).has_value());
  EXPECT_EQ(Shown().phase, JobPhase::kRunning);
  Say(12, Disconnected{});
  ASSERT_TRUE(Call(StopOf({0})).status.ok());
  EXPECT_EQ(Shown().phase, JobPhase::kOver);
}

// The launcher has ended, so nobody reports that the rank is being stopped.
TEST_F(JobStop, DoesNotWaitForARankThatWasExcluded) {
  Begin();
  ASSERT_TRUE(Call(ExcludeWorker{.job = "job", .rank = 1, .why = "so"}).status.ok());
  ASSERT_TRUE(Call(StopOf({0})).status.ok());
  EXPECT_EQ(Shown().phase, JobPhase::kRunning);
  Say(10, Disconnected{});
  EXPECT_EQ(Shown().phase, JobPhase::kOver);
  EXPECT_EQ(Shown().reason, "stopped by SIGINT (Ctrl-C) to the launcher at a, run run");
}

TEST_F(JobStop, WaitsForARankThatIsBackAfterItWasExcluded) {
  Begin();
  ASSERT_TRUE(Call(ExcludeWorker{.job = "job", .rank = 1, .why = "so"}).status.ok());
  Hello(12, 1);
  ASSERT_TRUE(Call(StopOf({0})).status.ok());
  Say(10, Disconnected{});
  EXPECT_EQ(Shown().phase, JobPhase::kRunning);
}

TEST_F(JobStop, DropsNobodyWhoLives) {
  Begin();
  ASSERT_TRUE(Call(StopOf({0, 1})).status.ok());
  PassTimeBeating(10 * kFailureTimeout, {1, 10, 11});
  EXPECT_EQ(Shown().members.size(), 2u);
  EXPECT_EQ(Shown().phase, JobPhase::kRunning);
}

TEST_F(JobStop, OfRanksThatLiveOnIsForgotten) {
  Begin();
  ASSERT_TRUE(Call(StopOf({0, 1})).status.ok());
  PassTimeBeating(kFailureTimeout + absl::Seconds(1), {1, 10, 11});
  EXPECT_THAT(
      Said(EventKind::kExit),
      ElementsAre(
          StartsWith("ranks 0, 1 are being stopped: "),
          StartsWith(
              "ranks 0, 1 are still alive, but should have been stopped: SIGINT")));
  EXPECT_THAT(Logged(LogReason::Level::kWarning),
              Contains(StartsWith("job 'job': ranks 0, 1 are still alive")));
  Say(11, Disconnected{});
  EXPECT_EQ(Shown().members.size(), 2u) << "it may come back, as ever";
  Hello(12, 1);
  EXPECT_TRUE(Last<WorkerWelcome>(12).has_value());
  for (const ConnectionId worker : {10, 12}) Say(worker, Disconnected{});
  PassTimeBeating(kFailureTimeout, {1});
  EXPECT_THAT(Shown().members, IsEmpty());
  EXPECT_EQ(Shown().phase, JobPhase::kRunning) << "nobody has stopped it";
}

// Each of two launchers is named for its own rank.
TEST_F(JobStop, IsAtTheWordOfTheRanksOwnLauncher) {
  Begin();
  LauncherStop other = StopOf({1});
  other.host = "b";
  ASSERT_TRUE(Call(StopOf({0})).status.ok());
  ASSERT_TRUE(Call(other).status.ok());
  Hello(20, 0);
  EXPECT_THAT(Last<Waiting>(20)->reason, HasSubstr("the launcher at a, run"));
  PassTimeBeating(kFailureTimeout + absl::Seconds(1), {1, 10, 11});
  EXPECT_THAT(
      Said(EventKind::kExit),
      IsSupersetOf({AllOf(StartsWith("rank 0 is still alive"), HasSubstr("at a, run")),
                    AllOf(StartsWith("rank 1 is still alive"), HasSubstr("at b, run"))}));
}

TEST_F(JobStop, HasTheNextRunWaitForTheStreamsOfTheLast) {
  Begin();
  ASSERT_TRUE(Call(StopOf({0, 1})).status.ok());
  for (const uint32_t rank : {0u, 1u}) HelloOfNext(20 + rank, rank);
  EXPECT_FALSE(closed_.contains(20)) << closed_[20];
  ASSERT_TRUE(Last<Waiting>(20).has_value());
  EXPECT_THAT(Last<Waiting>(20)->reason,
              HasSubstr("waits for the end of the last run of job 'job', which is being "
                        "stopped: SIGINT (Ctrl-C) to the launcher at a"));
  for (const ConnectionId worker : {10, 11}) Say(worker, Disconnected{});
  PassTime(absl::Seconds(1));
  EXPECT_TRUE(Last<WorkerWelcome>(20).has_value());
  EXPECT_TRUE(Last<WorkerWelcome>(21).has_value());
}

TEST_F(JobStop, HasTheSameRunBeginAnew) {
  Begin();
  ASSERT_TRUE(Call(StopOf({1})).status.ok());
  Hello(21, 1);
  EXPECT_FALSE(closed_.contains(21)) << closed_[21];
  ASSERT_TRUE(Last<Waiting>(21).has_value());
  EXPECT_THAT(Last<Waiting>(21)->reason,
              HasSubstr("waits for rank 1 of job 'job': it is held by worker1, which is "
                        "being stopped: SIGINT"));
  Say(11, Disconnected{});
  PassTime(absl::Seconds(1));
  EXPECT_TRUE(Last<WorkerWelcome>(21).has_value());
  EXPECT_EQ(Shown().members.size(), 2u);
}

TEST_F(JobStop, OfRanksThatLiveOnKeepsTheNextRunOut) {
  Begin();
  ASSERT_TRUE(Call(StopOf({0, 1})).status.ok());
  HelloOfNext(20, 0);
  PassTimeBeating(kFailureTimeout + absl::Seconds(2), {1, 10, 11, 20});
  EXPECT_EQ(FailureOf(closed_[20]), Failure::kJobRefused);
  EXPECT_EQ(Shown().members.size(), 2u);
}

TEST_F(JobStop, IsNothingToTheNextLifeOfARank) {
  Begin();
  Say(11, Disconnected{});
  Hello(12, 1);  // started again
  ASSERT_TRUE(Call(StopOf({0})).status.ok());
  Say(10, Disconnected{});
  ASSERT_TRUE(Call(StopOf({1})).status.ok());
  Say(12, Leave{});
  EXPECT_EQ(Shown().reason, "all workers left") << "in order, and not stopped";
  Hello(13, 0);
  Hello(14, 1);
  Say(14, Disconnected{});
  Say(13, Disconnected{});
  EXPECT_EQ(Shown().members.size(), 2u) << "a new job, of which nothing was said";
}

TEST_F(JobStop, OfAnotherRunOrOfNobodyIsRefused) {
  Begin();
  LauncherStop other = StopOf({0, 1});
  other.run_id = "another";
  EXPECT_TRUE(absl::IsNotFound(Call(other).status));
  other.run_id = "";
  EXPECT_TRUE(absl::IsNotFound(Call(other).status));
  LauncherStop nameless = StopOf({0, 1});
  nameless.job = "jobs";
  EXPECT_TRUE(absl::IsNotFound(Call(nameless).status));
  EXPECT_THAT(std::string(Call(StopOf({kMaxWorkers})).status.message()),
              HasSubstr("allowed are 0 to"));
  EXPECT_THAT(std::string(Call(StopOf({})).status.message()),
              HasSubstr("allowed are 1 to"));
  EXPECT_THAT(Said(EventKind::kExit), IsEmpty());
  Say(10, Disconnected{});
  Say(11, Disconnected{});
  EXPECT_EQ(Shown().phase, JobPhase::kRunning);
}

TEST_F(JobStop, EndsAJobThatHasNotBegun) {
  AttachServer(1);
  Hello(10, 0);
  ASSERT_TRUE(Call(StopOf({0})).status.ok());
  Say(10, Disconnected{});
  EXPECT_EQ(Shown().phase, JobPhase::kOver);
  HelloOfNext(20, 0);
  HelloOfNext(21, 1);
  EXPECT_TRUE(Last<WorkerWelcome>(21).has_value());
}

TEST_F(JobStop, WordsOfLaunchersAreCutAndCleaned) {
  Begin();
  LauncherStop stop = StopOf({0});
  stop.why = "\x1b[2J";
  stop.host = std::string(100'000, 'x');
  for (uint32_t rank = 1; rank < 100; ++rank) stop.ranks.push_back(rank);
  ASSERT_TRUE(Call(stop).status.ok());
  const std::string said = Said(EventKind::kExit).at(0);
  EXPECT_THAT(said, HasSubstr("ranks 0, 1, 2, 3, 4, 5, 6, 7 and 92 more"));
  EXPECT_THAT(said, HasSubstr("\\x1b[2J"));
  EXPECT_LT(said.size(), 1000u);
}

using JobStopRestart = CoordinatorRestart;

// The job waits for them as usual: a rank that has not returned may have been stopped or
// not.
TEST_F(JobStopRestart, MembersThatAreNotBackYetAreNotGivenUp) {
  Begin();
  Restart();
  ServersReturn();
  ASSERT_TRUE(
      Call(LauncherStop{.job = "job", .run_id = "run", .ranks = {0, 1}, .host = "a"})
          .status.ok());
  EXPECT_EQ(Shown().members.size(), 2u);
  WorkerReturns(0);
  WorkerReturns(1);
  EXPECT_EQ(Shown().phase, JobPhase::kRunning);
  Say(100, Disconnected{});
  Say(101, Disconnected{});
  EXPECT_EQ(Shown().phase, JobPhase::kOver);
}

TEST_F(JobStopRestart, RanksThatHadDiedMayStillComeBack) {
  Begin();
  Say(11, Disconnected{});
  PassTimeBeating(kFailureTimeout, {1, 2, 10});
  epoch_ = Last<CommitEpoch>(1)->epoch;
  Restart();
  ServersReturn();
  WorkerReturns(0);
  ASSERT_EQ(Shown().phase, JobPhase::kRunning);
  ASSERT_TRUE(
      Call(LauncherStop{.job = "job", .run_id = "run", .ranks = {0}}).status.ok());
  Say(100, Disconnected{});
  EXPECT_EQ(Shown().phase, JobPhase::kRunning) << "rank 1 is of another launcher";
}

TEST_F(JobStopRestart, AProcessThatCameInsteadHasTimeToComeBack) {
  Begin();
  Restart();
  ServersReturn();
  WorkerReturns(0);
  ASSERT_TRUE(
      Call(LauncherStop{.job = "job", .run_id = "run", .ranks = {1}}).status.ok());
  Hello(201, 1);  // in place of the one that is not back
  ASSERT_TRUE(Last<WorkerWelcome>(201).has_value());
  Say(201, Disconnected{});
  EXPECT_EQ(Shown().members.size(), 2u);
}

// Two launchers without a run id are not taken for the same.
TEST_F(JobStop, OfALauncherWithoutARunIsRefused) {
  AttachServer(1);
  SayHello(20, TwoTensors(2), {.rank = 0, .run_id = "", .name = "a"});
  SayHello(21, TwoTensors(2), {.rank = 1, .run_id = "", .name = "b"});
  LauncherStop stop = StopOf({0, 1});
  stop.run_id = "";
  EXPECT_TRUE(absl::IsFailedPrecondition(Call(stop).status)) << Call(stop).status;
}

}  // namespace
}  // namespace syncline
