// How the coordinator acts by itself when a job misses its goals.
#include "comm/base/failure.h"
#include "server/coordinator/coordinator_restart_test_util.h"

namespace syncline {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class CoordinatorAnswers : public CoordinatorRestart {
 protected:
  void Begin(const std::string& answers, const std::string& mode = "bsp") {
    JobSpec job = TwoTensors(2);
    job.training.mode = *ParseModeText(mode);
    job.settings.goals = "step_p95_ms<=150";
    job.settings.answers = answers;
    BeginWith(job);
  }
  CallAnswer Update(const std::string& answers) {
    return Call(UpdateJob{.job = "job", .answers = answers});
  }
  // The members on these connections make five steps a second for this many seconds, and
  // compute for this many milliseconds of each step.
  void Train(int seconds, const std::map<ConnectionId, int>& computes_ms) {
    std::vector<ConnectionId> alive = {servers_.begin(), servers_.end()};
    for (const auto& [connection, ms] : computes_ms) alive.push_back(connection);
    for (int i = 0; i < seconds; ++i) {
      for (const auto& [connection, ms] : computes_ms) {
        Heartbeat& beat = beats_[connection];
        beat.step += 5;
        beat.phases.steps += 5;
        beat.samples += 40;
        beat.phases[WorkerPhase::kCompute] += 5e-3 * ms;
        beat.phases[WorkerPhase::kOthers] += 5e-3 * (200 - ms);
        for (int k = 0; k < 5; ++k) beat.durations.Add(absl::Milliseconds(200));
      }
      PassTimeBeating(absl::Seconds(1), alive);
    }
  }
  void HelloOn(ConnectionId connection, uint32_t rank, const std::string& name) {
    JobSpec job = TwoTensors(2);
    job.settings.goals = "step_p95_ms<=150";
    job.settings.answers = "exclude_straggler,min_workers=1";
    SayHello(connection, job,
             {.rank = rank, .run_id = "run", .name = name, .session_key = connection});
  }
  size_t Members() const {
    const JobView job = Shown();
    return static_cast<size_t>(std::ranges::count_if(
        job.members, [](const MemberView& member) { return !member.is_outside; }));
  }

  std::vector<ConnectionId> servers_ = {1, 2};
};

TEST_F(CoordinatorAnswers, ExcludesAStragglerAndTheOthersGoOn) {
  Begin("exclude_straggler,min_workers=1");
  Train(120, {{10, 40}, {11, 195}});
  ASSERT_TRUE(closed_.contains(11));
  EXPECT_TRUE(absl::IsAborted(closed_.at(11))) << closed_.at(11);
  const std::string told(closed_.at(11).message());
  EXPECT_THAT(told, HasSubstr("was excluded from job 'job': its own part of a step takes "
                              "195 ms, 4.9 times as long as that of the next slowest"));
  EXPECT_EQ(FailureOf(closed_.at(11)), Failure::kExcluded);
  EXPECT_THAT(told, HasSubstr("goal step_p95_ms<=150 is missed: "));
  EXPECT_THAT(told, HasSubstr("from another host at once, from this one in 10m"));
  EXPECT_THAT(Said(EventKind::kAnswer),
              ElementsAre(HasSubstr("excludes worker 1 (): its own part of a step")));
  EXPECT_THAT(Said(EventKind::kDeath), IsEmpty());
  EXPECT_THAT(Logged(LogReason::Level::kWarning),
              Contains(HasSubstr("job 'job': excludes worker 1")));
  EXPECT_THAT(Said(EventKind::kEpoch).back(),
              HasSubstr("with 1 member: worker 1 () was excluded"));
  EXPECT_EQ(Shown().epoch_changes.at("answer"), 1u);
  EXPECT_EQ(Shown().answers->setting, "exclude_straggler,min_workers=1");
  EXPECT_EQ(Shown().answers->given.at("exclude_straggler"), 1u);
  EXPECT_EQ(Members(), 1u);
  Train(600, {{10, 40}});
  EXPECT_FALSE(closed_.contains(10)) << "nobody is excluded for whom nobody waits";
  EXPECT_THAT(Said(EventKind::kAnswer).back(),
              HasSubstr("exclude_straggler has not helped"))
      << "steps took as long";
}

TEST_F(CoordinatorAnswers, AreNoneUnlessTheyAreSaid) {
  Begin("none");
  Train(300, {{10, 40}, {11, 195}});
  EXPECT_FALSE(closed_.contains(11));
  EXPECT_FALSE(Shown().answers);
  ASSERT_TRUE(Update("exclude_straggler,min_workers=1,factor=2.0").status.ok());
  EXPECT_THAT(Said(EventKind::kSettings),
              ElementsAre("answers from none to exclude_straggler,min_workers=1"));
  EXPECT_THAT(Update("exclude_straggler,min_workers=1").changed.changes, IsEmpty())
      << "the same";
  Train(100, {{10, 40}, {11, 195}});
  EXPECT_TRUE(closed_.contains(11));
  ASSERT_TRUE(Update("none").status.ok());
  PassTime(absl::Seconds(1));
  EXPECT_FALSE(Shown().answers);
}

TEST_F(CoordinatorAnswers, DoNothingForAJobWithoutGoals) {
  Begin("exclude_straggler,min_workers=1");
  ASSERT_TRUE(Call(UpdateJob{.job = "job", .goals = "none"}).status.ok());
  Train(300, {{10, 40}, {11, 195}});
  EXPECT_FALSE(closed_.contains(11));
  EXPECT_EQ(Shown().answers->state,
            "the job has no goal of samples_per_s or step_p95_ms");
}

TEST_F(CoordinatorAnswers, LeaveASuccessorOutsideOnTheSameHostOnly) {
  Begin("exclude_straggler,min_workers=1");
  Train(120, {{10, 40}, {11, 195}});
  ASSERT_EQ(Members(), 1u);
  HelloOn(12, 1, "");  // on the host of its predecessor
  EXPECT_EQ(Members(), 1u);
  Train(3, {{10, 40}, {12, 0}});
  EXPECT_THAT(Last<Waiting>(12)->reason, HasSubstr("was excluded on host "));
  Say(12, Leave{});
  HelloOn(13, 1, "b:17");
  EXPECT_EQ(Members(), 2u);
}

TEST_F(CoordinatorAnswers, LetASuccessorInOnceItsTimeIsOver) {
  Begin("exclude_straggler,min_workers=1");
  Train(120, {{10, 40}, {11, 195}});
  HelloOn(12, 1, "");
  Train(599, {{10, 40}, {12, 0}});
  EXPECT_EQ(Members(), 2u);
  EXPECT_THAT(Said(EventKind::kJoin).back(), HasSubstr("after it had waited outside"));
}

TEST_F(CoordinatorAnswers, OutliveTheCoordinator) {
  Begin("exclude_straggler,min_workers=1");
  Train(120, {{10, 40}, {11, 195}});
  ASSERT_EQ(Members(), 1u);
  epoch_ = Last<CommitEpoch>(1)->epoch;
  Restart();
  ServersReturn();
  WorkerReturns(0);
  PassTime(absl::Seconds(1));
  ASSERT_EQ(Shown().phase, JobPhase::kRunning) << Shown().reason;
  EXPECT_EQ(Shown().answers->setting, "exclude_straggler,min_workers=1");
  HelloOn(12, 1, "");
  EXPECT_EQ(Members(), 1u) << "it is still out";
  servers_ = {10, 20};
  Train(300, {{100, 40}});
  EXPECT_EQ(Members(), 1u);
}

TEST_F(CoordinatorAnswers, LetWorkersRunAhead) {
  Begin("staleness<=2,pause_s=30", "ssp:0");
  Train(60, {{10, 100}, {11, 100}});
  EXPECT_EQ(Shown().mode, "ssp:staleness=1");
  EXPECT_THAT(Said(EventKind::kSettings), Contains(HasSubstr("mode from ")));
  EXPECT_THAT(Said(EventKind::kAnswer).front(),
              HasSubstr("workers may be 1 step ahead from now on: workers wait for each "
                        "other for 50 % of a step"));
}

TEST_F(CoordinatorAnswers, AreRefusedWhereTheyBringNothing) {
  for (const auto& [answers, mode, why] :
       {std::tuple("exclude_straggler", "asp", "where no worker waits for the slowest"),
        std::tuple("exclude_straggler", "bsp:quorum=1", "bsp with a quorum"),
        std::tuple("staleness<=8", "bsp", "begin in mode ssp"),
        std::tuple("add_server", "bsp", "needs durability=peer"),
        std::tuple("codec", "bsp", "is not an answer")}) {
    JobSpec job = TwoTensors(2);
    job.training.mode = *ParseModeText(mode);
    EXPECT_THAT(std::string(CheckAnswers(answers, job).message()), HasSubstr(why));
  }
  Begin("none");
  EXPECT_TRUE(absl::IsInvalidArgument(Update("staleness<=8").status));
  EXPECT_THAT(std::string(Update("exclude_straggler").status.message()),
              HasSubstr("needs min_workers=N"));
  EXPECT_THAT(Said(EventKind::kSettings), IsEmpty());
}

TEST_F(CoordinatorAnswers, ExcludeNoProcessButTheOneThatIsMeant) {
  Begin("none");
  const uint32_t incarnation = welcomes_.at(1).incarnation;
  const auto exclude = [&](uint32_t which) {
    return Call(ExcludeWorker{.job = "job", .rank = 1, .incarnation = which}).status;
  };
  EXPECT_TRUE(absl::IsNotFound(exclude(incarnation + 1)));
  EXPECT_FALSE(closed_.contains(11));
  EXPECT_TRUE(exclude(incarnation).ok());
}

TEST_F(CoordinatorAnswers, AreStoredBeforeTheWorkerHearsOfIt) {
  Begin("none");
  bool is_stored = false;
  for (const CoordinatorOutput& output :
       coordinator_->Apply(ExcludeWorker{.job = "job", .rank = 1}, now_)) {
    if (std::get_if<StoreRecord>(&output) != nullptr) is_stored = true;
    const bool is_told = std::get_if<CloseMember>(&output) != nullptr;
    EXPECT_TRUE(is_stored || !is_told);
  }
  EXPECT_TRUE(is_stored);
}

TEST_F(CoordinatorAnswers, ExcludeNobodyWhoIsNoMemberAndNotTheLastOne) {
  Begin("none");
  const auto exclude = [&](const std::string& job, uint32_t rank) {
    return Call(ExcludeWorker{.job = job, .rank = rank, .why = "so"}).status;
  };
  EXPECT_TRUE(absl::IsNotFound(exclude("other", 1)));
  EXPECT_TRUE(absl::IsNotFound(exclude("job", 7)));
  EXPECT_TRUE(exclude("job", 1).ok());
  EXPECT_TRUE(absl::IsNotFound(exclude("job", 1)));
  EXPECT_THAT(std::string(exclude("job", 0).message()), HasSubstr("is the only member"));
}

}  // namespace
}  // namespace syncline
