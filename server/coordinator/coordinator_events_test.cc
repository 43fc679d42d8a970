// Each event of a job is emitted once, with its cause.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "server/coordinator/coordinator_test_util.h"

namespace syncline {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

class CoordinatorEvents : public CoordinatorTest {};

TEST_F(CoordinatorEvents, EachKindHasANameThatIsReadAgain) {
  for (int kind = 0; kind <= static_cast<int>(EventKind::kAnswer); ++kind) {
    const auto one = static_cast<EventKind>(kind);
    EXPECT_EQ(EventKindOf(EventKindName(one)), one);
  }
  EXPECT_EQ(EventKindOf("nothing"), std::nullopt);
}

TEST_F(CoordinatorEvents, MembersComeAndGoEachWithItsCause) {
  Begin();
  EXPECT_THAT(Said(EventKind::kServer),
              ElementsAre("server 0 (server1) attached with 1 engine thread"));
  EXPECT_THAT(Said(EventKind::kJoin),
              ElementsAre("worker 0 (worker0) joins", "worker 1 (worker1) joins"));
  EXPECT_THAT(Said(EventKind::kEpoch),
              ElementsAre("epoch 1 with 2 members: the job begins"));
  Say(11, Disconnected{});
  PassTimeBeating(kFailureTimeout, {1, 10});
  EXPECT_THAT(
      Said(EventKind::kDeath),
      ElementsAre(
          "worker 1 (worker1) was dropped: its connection broke and was not restored"));
  EXPECT_THAT(Said(EventKind::kEpoch).back(),
              StartsWith("epoch 2 with 1 member: worker 1 (worker1): its connection"));
  Say(10, Leave{});
  EXPECT_THAT(Said(EventKind::kLeave), ElementsAre("worker 0 (worker0) left"));
  EXPECT_THAT(Said(EventKind::kEnd), ElementsAre("the job is over: all workers left"));
  EXPECT_THAT(Said(EventKind::kRecovery), IsEmpty());
}

TEST_F(CoordinatorEvents, ANewcomerThatGivesUpSaysWhyThoughItIsNoMember) {
  Begin();
  Say(10, Disconnected{});
  Say(11, Disconnected{});
  SayHello(20, TwoTensors(2), {.rank = 0, .run_id = "next", .name = "next"});
  Say(20, Leave{"the time was up\nbefore all workers were there"});
  const std::string what =
      "worker 0 (next) gave up before it became a member of job 'job': the time was "
      "up\\x0a"
      "before all workers were there";
  EXPECT_THAT(Said(EventKind::kLeave), ElementsAre(what));
  EXPECT_THAT(Logged(LogReason::Level::kWarning), Contains(what));
}

TEST_F(CoordinatorEvents, AGoodbyeWithAnErrorIsAWarningWithItsReason) {
  Begin();
  Say(10, Leave{"the time was up\nbefore tensor 'w' had its weights"});
  const std::string what =
      "worker 0 (worker0) left with an error: the time was up\\x0abefore tensor 'w' had "
      "its weights";
  EXPECT_THAT(Said(EventKind::kLeave), ElementsAre(what));
  EXPECT_THAT(Logged(LogReason::Level::kWarning), Contains("job 'job': " + what));
  EXPECT_THAT(Said(EventKind::kEpoch).back(), HasSubstr(what));
  Say(11, Leave{std::string(100'000, 'x')});
  EXPECT_LT(Said(EventKind::kLeave).back().size(), 600u);
  EXPECT_THAT(Said(EventKind::kEnd), ElementsAre("the job is over: all workers left"));
}

TEST_F(CoordinatorEvents, LossesAreWarningsInTheLogAndAJobThatFailsIsAnError) {
  Begin();
  EXPECT_THAT(Logged(LogReason::Level::kWarning), IsEmpty());
  Say(11, Disconnected{});
  PassTimeBeating(kFailureTimeout, {1, 10});
  EXPECT_THAT(Logged(LogReason::Level::kWarning),
              ElementsAre(StartsWith("worker 1 (worker1) was dropped from job 'job'"),
                          StartsWith("job 'job': epoch 2 with 1 members: worker 1")));
  EXPECT_THAT(Logged(LogReason::Level::kError), IsEmpty());
  Say(1, Disconnected{});
  PassTimeBeating(kFailureTimeout, {10});
  EXPECT_THAT(Logged(LogReason::Level::kWarning).back(),
              HasSubstr("server 0 (server1) is gone"));
  EXPECT_THAT(Logged(LogReason::Level::kError),
              ElementsAre(StartsWith("job 'job' has failed: ")));
}

TEST_F(CoordinatorEvents, WhatEndsInOrderIsNoWarning) {
  Begin();
  Say(10, Leave{});
  Say(11, Leave{});
  Say(1, Leave{});
  EXPECT_THAT(Logged(LogReason::Level::kInfo),
              testing::IsSupersetOf({"job 'job' is over: all workers left",
                                     "server 0 (server1) is gone: it left"}));
  EXPECT_THAT(Logged(LogReason::Level::kWarning), IsEmpty());
  EXPECT_THAT(Logged(LogReason::Level::kError), IsEmpty());
}

TEST_F(CoordinatorEvents, AreOfTheirJobAtItsFurthestStep) {
  Begin();
  beats_[10].step = 7;
  beats_[11].step = 5;
  PassTimeBeating(absl::Seconds(1), {1, 10, 11});
  Say(11, Leave{});
  const CoordinatorEvent& left = events_.back();
  EXPECT_EQ(left.job, Last<WorkerWelcome>(10)->job);
  EXPECT_EQ(left.job_name, "job");
  EXPECT_EQ(left.step, 7u);
  EXPECT_EQ(events_.front().job, 0u) << "the server is no job's";
}

TEST_F(CoordinatorEvents, ANewProcessOfARankIsADeathAndAJoin) {
  Begin();
  Say(11, Disconnected{});
  Hello(12, 1);
  EXPECT_THAT(Said(EventKind::kDeath),
              ElementsAre("worker 1 (worker1) came back as a new process"));
  EXPECT_EQ(Said(EventKind::kJoin).size(), 3u);
}

TEST_F(CoordinatorEvents, ALauncherSaysHowAProcessEndedBeforeAnybodyMissesIt) {
  Begin();
  EXPECT_EQ(Call(WorkerExit{.job = "job",
                            .run_id = "run",
                            .rank = 1,
                            .how = "signal 9 (Killed)",
                            .then = "started again (1 of 3)"})
                .status,
            absl::OkStatus());
  EXPECT_EQ(Call(WorkerExit{.job = "job",
                            .run_id = "run",
                            .rank = 0,
                            .how = "exit code 1",
                            .said = "ValueError: \x1b[2Jno data"})
                .status,
            absl::OkStatus());
  EXPECT_THAT(Said(EventKind::kExit),
              ElementsAre("rank 1 died: signal 9 (Killed), started again (1 of 3)",
                          "rank 0 died: exit code 1; it said: ValueError: "
                          "\\x1b[2Jno data"));
  EXPECT_EQ(events_.back().job_name, "job");
  EXPECT_THAT(Said(EventKind::kDeath), IsEmpty()) << "it changes nothing";
}

TEST_F(CoordinatorEvents, ExitsOfNobodyKnownAreRefusedAndLongWordsAreCut) {
  Begin();
  const WorkerExit exit = {.job = "job", .run_id = "run", .rank = 1, .how = "signal 9"};
  WorkerExit other_job = exit;
  other_job.job = "jobs";
  EXPECT_TRUE(absl::IsNotFound(Call(other_job).status));
  WorkerExit other_run = exit;
  other_run.run_id = "another";
  EXPECT_TRUE(absl::IsNotFound(Call(other_run).status));
  WorkerExit other_rank = exit;
  other_rank.rank = kMaxWorkers;
  EXPECT_THAT(std::string(Call(other_rank).status.message()),
              HasSubstr("allowed are 0 to"));
  EXPECT_THAT(Said(EventKind::kExit), IsEmpty());
  WorkerExit long_words = exit;
  long_words.said = std::string(100'000, 'x');
  long_words.then = long_words.how = long_words.said;
  EXPECT_EQ(Call(long_words).status, absl::OkStatus());
  EXPECT_LT(Said(EventKind::kExit).at(0).size(), 1000u);
  // The rank may have joined while the job ran.
  WorkerExit joined = exit;
  joined.rank = 2;
  EXPECT_EQ(Call(joined).status, absl::OkStatus());
}

TEST_F(CoordinatorEvents, NewSettingsAreSaidWithTheOldOnes) {
  JobSpec job = TwoTensors(1);
  job.training.optimizer = {.name = "sgd", .options = {{"lr", 0.5}, {"momentum", 0.25}}};
  AttachServer(1);
  SayHello(10, job, {.rank = 0, .name = "w"});
  ASSERT_TRUE(Call(UpdateJob{.job = "job", .optimizer = {{"lr", 0.125}}}).status.ok());
  EXPECT_THAT(Said(EventKind::kSettings), ElementsAre("lr from 0.5 to 0.125"));
  ASSERT_TRUE(Call(UpdateJob{.job = "job",
                             .schedule = NamedOptions{.name = "cosine",
                                                      .values = {{"total_steps", 100},
                                                                 {"warmup_steps", 10}}}})
                  .status.ok());
  EXPECT_THAT(Said(EventKind::kSettings).back(),
              AllOf(StartsWith("schedule from constant"), HasSubstr("total_steps=100")));
  ASSERT_TRUE(Call(UpdateJob{.job = "job", .optimizer = {{"lr", 0.125}}}).status.ok());
  EXPECT_THAT(Said(EventKind::kSettings).back(), StartsWith("nothing changed"));
  ASSERT_TRUE(
      Call(UpdateJob{.job = "job", .optimizer = {{"dampening", 0.5}}}).status.ok());
  EXPECT_THAT(Said(EventKind::kSettings).back(), StartsWith("dampening from 0 to 0.5"));
}

TEST_F(CoordinatorEvents, AChoiceOfCodecIsSaidWhenItChangesAndNotWhenItIsTried) {
  Begin();
  const auto choose = [this](const std::string& choice) {
    beats_[10].compression.choice = choice;
    Say(10, beats_[10]);
  };
  choose("dense: the wire was not measured yet");
  choose("onebit: wire 0.9 GB/s, 2.1 ms against 9.8 ms dense");
  choose("onebit: wire 0.8 GB/s, 2.3 ms against 9.9 ms dense");
  choose("int8: tried for a step; onebit: wire 0.8 GB/s");
  choose("onebit: wire 0.8 GB/s, 2.3 ms against 9.9 ms dense");
  EXPECT_THAT(
      Said(EventKind::kCodec),
      ElementsAre("worker 0 (worker0) chooses dense: the wire was not measured yet",
                  "worker 0 (worker0) chooses onebit: wire 0.9 GB/s, 2.1 ms "
                  "against 9.8 ms dense"));
}

TEST_F(CoordinatorEvents, AStallIsSaidWhenItBeginsAndWhenItEnds) {
  Begin();
  JobProgress progress{.job = 1, .step = 20, .trained = 2};
  progress.members = {{.rank = 0, .owed = 2}, {.rank = 1, .waits = 2}};
  beats_[1].jobs = {progress};
  beats_[11].waiting = true;
  PassTimeBeating(kFailureTimeout * 2, {1, 10, 11});
  ASSERT_EQ(Said(EventKind::kStall).size(), 1u);
  EXPECT_THAT(Said(EventKind::kStall)[0], HasSubstr("rank 0 owes step 20"));
  progress.members[0] = {.rank = 0, .contributed = 1, .moved = 1};
  progress.members[1] = {.rank = 1, .contributed = 1, .moved = 1};
  beats_[1].jobs = {progress};
  PassTimeBeating(absl::Seconds(2), {1, 10, 11});
  ASSERT_EQ(Said(EventKind::kStall).size(), 2u);
  EXPECT_THAT(Said(EventKind::kStall)[1], StartsWith("no longer held up, after"));
  EXPECT_GE(events_.back().took.value_or(absl::ZeroDuration()), absl::Seconds(8));
}

TEST_F(CoordinatorEvents, AFailureSaysWhy) {
  Begin();
  Say(1, Disconnected{});
  PassTimeBeating(kFailureTimeout, {10, 11});
  EXPECT_THAT(Said(EventKind::kServer).back(),
              StartsWith("server 0 (server1) is gone: "));
  EXPECT_THAT(Said(EventKind::kEnd),
              ElementsAre(StartsWith("the job has failed: server 0 (server1) is lost")));
}

// ---- Figures beside them ----

TEST_F(CoordinatorEvents, ChangesOfEpochsAreCountedByCause) {
  Begin();
  Hello(12, 2);
  Say(11, Leave{});
  const JobView job = coordinator_->View(now_).jobs.at(0);
  const std::map<std::string, uint64_t> expected = {
      {"begin", 1}, {"join", 1}, {"leave", 1}};
  EXPECT_EQ(job.epoch_changes, expected);
}

TEST_F(CoordinatorEvents, WhoContributesIsNotWhoIsAlive) {
  Begin();
  beats_[10].step = beats_[11].step = 4;
  next_step_[1] = 6;
  PassTimeBeating(absl::Seconds(1), {1, 10, 11});
  Hello(12, 2);  // from step 6 on
  JobView job = coordinator_->View(now_).jobs.at(0);
  EXPECT_EQ(job.members.size(), 3u);
  EXPECT_EQ(job.participants, 2u);
  beats_[10].step = 9;
  beats_[11].step = beats_[12].step = 7;
  PassTimeBeating(absl::Seconds(1), {1, 10, 11, 12});
  job = coordinator_->View(now_).jobs.at(0);
  EXPECT_EQ(job.participants, 3u);
  EXPECT_EQ(job.staleness, 2u);
}

TEST_F(CoordinatorEvents, ServersAreCountedBeforeAndAfterAJobHasThem) {
  Hello(10, 0, 1);
  JobView job = coordinator_->View(now_).jobs.at(0);
  EXPECT_EQ(job.expected_servers, 1u);
  EXPECT_EQ(job.attached_servers, 0u);
  AttachServer(1);
  job = coordinator_->View(now_).jobs.at(0);
  EXPECT_EQ(job.attached_servers, 1u);
  Say(1, Disconnected{});
  job = coordinator_->View(now_).jobs.at(0);
  EXPECT_EQ(job.expected_servers, 1u);
  EXPECT_EQ(job.attached_servers, 0u);
}

TEST_F(CoordinatorEvents, PushedBytesOutliveTheLivesThatPushedThem) {
  Begin();
  const auto push = [this](ConnectionId connection, uint64_t values) {
    beats_[connection].compression = {.pushed_values = values,
                                      .pushed_value_bytes = values};
    Say(connection, beats_[connection]);
  };
  push(10, 100);
  push(11, 50);
  push(11, 60);
  Say(11, Disconnected{});
  Hello(12, 1);
  push(12, 5);
  const JobView job = coordinator_->View(now_).jobs.at(0);
  EXPECT_EQ(job.pushed.pushed_values, 165u);
  EXPECT_DOUBLE_EQ(job.pushed.ratio(), 4);
}

}  // namespace
}  // namespace syncline
