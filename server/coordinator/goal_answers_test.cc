// When missed goals are answered, and every reason for not answering.
#include "server/coordinator/goal_answers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace syncline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class GoalAnswersTest : public ::testing::Test {
 protected:
  GoalAnswersTest() {
    job_ = {.phase = JobPhase::kRunning, .expected_workers = 4, .mode = "bsp"};
    for (uint32_t rank = 0; rank < 4; ++rank) AddMember(rank);
    Goals("step_p95_ms<=500");
  }

  void AddMember(uint32_t rank) {
    job_.members.push_back({.rank = rank,
                            .incarnation = next_incarnation_++,
                            .name = absl::StrCat("host", rank, ":1")});
  }
  void Goals(const std::string& specification) {
    goals_.clear();
    const GoalSpec spec = *ParseGoals(specification);
    for (const Goal& goal : spec.goals) {
      goals_.push_back({.goal = goal, .now = 1000, .is_missed = true});
    }
  }
  static GoalAnswers New(const std::string& specification) {
    return GoalAnswers(*ParseAnswers(specification));
  }
  // Runs until the time is over or an answer is given. A worker computes for 0.3 s of
  // each step of one second, a slow one for 0.9 s.
  std::optional<Answer> Train(GoalAnswers& answers, int seconds) {
    for (int i = 0; i < seconds; ++i) {
      for (MemberView& member : job_.members) {
        ++member.phases.steps;
        const double computes = slow_ == member.rank ? 0.9 : computes_;
        member.phases[WorkerPhase::kCompute] += computes;
        member.phases[WorkerPhase::kOthers] += 1 - computes;
        member.durations.Add(absl::Seconds(1));
      }
      now_ += absl::Seconds(1);
      const AnswerVerdict verdict = answers.Look(job_, goals_, now_);
      for (const AnswerNews& news : verdict.news) news_.push_back(news.what);
      if (verdict.answer) return verdict.answer;
    }
    return std::nullopt;
  }
  // Looks like the coordinator does.
  std::optional<Answer> TrainAndGive(GoalAnswers& answers, int seconds) {
    const std::optional<Answer> answer = Train(answers, seconds);
    if (!answer) return answer;
    answers.Gave(*answer, now_);
    if (answer->kind == AnswerKind::kStaleness) {
      job_.mode = absl::StrCat("ssp:staleness=", answer->staleness);
      return answer;
    }
    std::erase_if(job_.members,
                  [&](const auto& member) { return member.rank == answer->rank; });
    return answer;
  }
  std::string State(const GoalAnswers& answers) const { return answers.View(now_).state; }

  JobView job_;
  std::vector<GoalView> goals_;
  std::optional<uint32_t> slow_ = 2;
  double computes_ = 0.3;
  uint32_t next_incarnation_ = 7;
  absl::Duration now_ = absl::Seconds(100);
  std::vector<std::string> news_;
};

TEST_F(GoalAnswersTest, ExcludesTheStragglerOnceItHasBeenOneForLongEnough) {
  GoalAnswers answers = New("exclude_straggler");
  EXPECT_FALSE(Train(answers, 70));
  EXPECT_EQ(State(answers),
            "all have waited for worker 2 (host2:1) for 50 s of the 60 s after which it "
            "is excluded");
  const std::optional<Answer> answer = Train(answers, 1);
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->kind, AnswerKind::kExcludeStraggler);
  EXPECT_EQ(answer->rank, 2u);
  EXPECT_EQ(answer->incarnation, 9u);
  EXPECT_EQ(answer->why,
            "its own part of a step takes 900 ms, 3.0 times as long as that of the next "
            "slowest, for 60 s; goal step_p95_ms<=500 is missed: 1000");
}

TEST_F(GoalAnswersTest, AWorkerThatMayNotBeExcludedBarsNoOther) {
  GoalAnswers answers = New("exclude_straggler,after_s=10");
  const std::optional<Answer> first = Train(answers, 100);
  ASSERT_TRUE(first);
  answers.Refused(*first, "it is the last one of a host with servers", now_);
  EXPECT_FALSE(Train(answers, 600));
  EXPECT_EQ(State(answers),
            "does not exclude worker 2 (host2:1), for which all wait: it "
            "is the last one of a host with servers");
  slow_ = 1;
  const std::optional<Answer> other = Train(answers, 100);
  ASSERT_TRUE(other);
  EXPECT_EQ(other->rank, 1u);
}

TEST_F(GoalAnswersTest, AWorkerThatMightNotBeExcludedMayBeOnceItIsAnotherOne) {
  GoalAnswers answers = New("exclude_straggler,after_s=10");
  const std::optional<Answer> first = Train(answers, 100);
  ASSERT_TRUE(first);
  answers.Refused(*first, "it is the last one of a host with servers", now_);
  job_.members[2].incarnation = next_incarnation_++;
  EXPECT_TRUE(Train(answers, 100));
}

TEST_F(GoalAnswersTest, DoesNothingThatWasNotAskedFor) {
  GoalAnswers answers = New("staleness<=8");
  EXPECT_FALSE(Train(answers, 600)) << "the mode has none";
  EXPECT_EQ(State(answers), "the job's mode has no staleness");
}

TEST_F(GoalAnswersTest, DoesNothingWhileGoalsAreMet) {
  GoalAnswers answers = New("exclude_straggler,after_s=10");
  goals_[0].now = 400;
  goals_[0].is_missed = false;
  EXPECT_FALSE(Train(answers, 600));
  EXPECT_THAT(State(answers), HasSubstr("its goals are met"));
  goals_[0].now = 1000;
  EXPECT_FALSE(Train(answers, 600)) << "one window that misses is no news";
  goals_[0].burn_rate_5m = 6;
  goals_[0].burn_rate_1h = 1;
  goals_[0].missed_windows = 1;
  EXPECT_FALSE(Train(answers, 600)) << "one long window";
  goals_[0].missed_windows = 2;
  goals_[0].burn_rate_1h = 0.9;
  EXPECT_FALSE(Train(answers, 600)) << "it matters little over an hour";
  goals_[0].burn_rate_1h = 1;
  const std::optional<Answer> answer = Train(answers, 1);
  ASSERT_TRUE(answer);
  EXPECT_THAT(answer->why,
              HasSubstr("goal step_p95_ms<=500 burns its error budget: 1000"));
}

TEST_F(GoalAnswersTest, DoesNothingForAGoalThatIsMetJustNow) {
  GoalAnswers answers = New("exclude_straggler,after_s=10");
  goals_[0].burn_rate_5m = 100;
  goals_[0].burn_rate_1h = 100;
  goals_[0].missed_windows = 30;
  goals_[0].now = 400;
  EXPECT_FALSE(Train(answers, 600)) << "what it burns is of the past";
}

TEST_F(GoalAnswersTest, DoesNothingWithoutAGoalOfSpeed) {
  GoalAnswers answers = New("exclude_straggler,after_s=10");
  Goals("participation>=0.9,wire_mb_per_step<=1");
  EXPECT_FALSE(Train(answers, 600));
  EXPECT_EQ(State(answers), "the job has no goal of samples_per_s or step_p95_ms");
  goals_.clear();
  EXPECT_FALSE(Train(answers, 600));
}

TEST_F(GoalAnswersTest, LeavesAJobAloneThatStandsStillOrChanges) {
  GoalAnswers answers = New("exclude_straggler,after_s=10");
  ASSERT_FALSE(Train(answers, 10));
  for (const auto& [phase, name] : {std::pair(JobPhase::kWaiting, "waiting"),
                                    std::pair(JobPhase::kChanging, "changing"),
                                    std::pair(JobPhase::kSaving, "saving")}) {
    job_.phase = phase;
    EXPECT_FALSE(Train(answers, 100));
    EXPECT_EQ(State(answers), absl::StrCat("the job is ", name));
  }
  job_.phase = JobPhase::kRunning;
  for (int i = 0; i < 300; ++i) {  // no step is made
    now_ += absl::Seconds(1);
    EXPECT_FALSE(answers.Look(job_, goals_, now_).answer);
  }
}

TEST_F(GoalAnswersTest, DoesNotExcludeWhoIsSlowByTurns) {
  GoalAnswers answers = New("exclude_straggler,after_s=60");
  for (int i = 0; i < 60; ++i) {
    slow_ = i % 4;
    EXPECT_FALSE(Train(answers, 50)) << "flapping";
  }
}

TEST_F(GoalAnswersTest, LeavesHalfOfTheWorkers) {
  GoalAnswers answers = New("exclude_straggler,after_s=10,pause_s=30,per_hour=20");
  for (const uint32_t rank : {2u, 0u}) {
    slow_ = rank;
    const std::optional<Answer> answer = TrainAndGive(answers, 100);
    ASSERT_TRUE(answer) << rank;
    EXPECT_EQ(answer->rank, rank);
    goals_[0].now = *goals_[0].now * 0.8;  // it helps
  }
  slow_ = 1;
  EXPECT_FALSE(Train(answers, 300));
  EXPECT_EQ(State(answers),
            "does not exclude worker 1 (host1:1), for which all wait: "
            "the job has 2 workers, and at least 2 must stay");
}

TEST_F(GoalAnswersTest, LeavesAsManyWorkersAsAreSaid) {
  GoalAnswers answers = New("exclude_straggler,after_s=10,min_workers=4");
  EXPECT_FALSE(Train(answers, 1300));
  EXPECT_THAT(State(answers),
              HasSubstr("the job has 4 workers, and at least 4 must stay"));
  EXPECT_THAT(news_, testing::SizeIs(3)) << "said every ten minutes";
  EXPECT_THAT(news_[0], HasSubstr("does not exclude worker 2 (host2:1)"));
  AddMember(4);
  job_.members.back().is_outside = true;
  EXPECT_FALSE(Train(answers, 100)) << "one that waits outside is not a member";
  job_.members.back().is_outside = false;
  EXPECT_TRUE(Train(answers, 100));
}

TEST_F(GoalAnswersTest, WaitsForTheEffectBeforeTheNext) {
  GoalAnswers answers = New("exclude_straggler,after_s=10,pause_s=300,min_workers=1");
  ASSERT_TRUE(TrainAndGive(answers, 100));
  goals_[0].now = 800;
  slow_ = 0;
  EXPECT_FALSE(Train(answers, 299));
  EXPECT_EQ(State(answers), "waits 1 s to see whether the last answer helps");
  ASSERT_TRUE(TrainAndGive(answers, 30));
  EXPECT_THAT(news_,
              ElementsAre("exclude_straggler has helped: step_p95_ms was 1000, and "
                          "was 800 300 s later"));
  EXPECT_EQ(answers.View(now_).given.at("exclude_straggler"), 2u);
  EXPECT_THAT(answers.View(now_).last, HasSubstr("3.0 times as long"));
}

TEST_F(GoalAnswersTest, DoesNotExcludeForWhatAllLoseToTheServers) {
  GoalAnswers answers = New("exclude_straggler,after_s=10");
  computes_ = 0.87;  // and 0.9 of the slow one
  EXPECT_FALSE(Train(answers, 100));
  computes_ = 0.3;
  EXPECT_TRUE(Train(answers, 100));
}

TEST_F(GoalAnswersTest, LeavesAJobAloneOfWhichAMemberIsSilent) {
  GoalAnswers answers = New("exclude_straggler,after_s=10");
  job_.members[3].is_silent = true;
  EXPECT_FALSE(Train(answers, 100));
  EXPECT_EQ(State(answers), "worker 3 (host3:1) is silent");
  job_.members[3].is_silent = false;
  EXPECT_TRUE(Train(answers, 1));
}

TEST_F(GoalAnswersTest, AreJudgedByAWindowThatBeganAfterThem) {
  GoalAnswers answers = New("exclude_straggler,after_s=10,pause_s=60,min_workers=1");
  ASSERT_TRUE(TrainAndGive(answers, 100));
  goals_[0].now_age = absl::Minutes(10);
  slow_ = 0;
  EXPECT_FALSE(Train(answers, 300));
  EXPECT_THAT(news_, IsEmpty());
  EXPECT_THAT(State(answers), HasSubstr("waits for a window of its goal"));
  goals_[0].now = std::nullopt;
  EXPECT_FALSE(Train(answers, 100));
  EXPECT_THAT(news_, IsEmpty());
  goals_[0].now = 800;
  goals_[0].now_age = absl::Seconds(10);
  EXPECT_TRUE(Train(answers, 1));
  EXPECT_THAT(news_, ElementsAre(HasSubstr("exclude_straggler has helped")));
}

TEST_F(GoalAnswersTest, ExcludesNoSecondOneWhenTheFirstDidNotHelp) {
  GoalAnswers answers = New("exclude_straggler,after_s=10,pause_s=60,per_hour=20");
  ASSERT_TRUE(TrainAndGive(answers, 100));
  goals_[0].now = 950;
  slow_ = 0;
  EXPECT_FALSE(Train(answers, 3600)) << "one innocent machine after another";
  EXPECT_EQ(news_.front(),
            "exclude_straggler has not helped: step_p95_ms was 1000, and was 950 60 s "
            "later; it is not tried again within an hour");
  EXPECT_THAT(State(answers), HasSubstr("for which all wait: the last one did not help"));
  EXPECT_TRUE(Train(answers, 100)) << "an hour is over";
}

TEST_F(GoalAnswersTest, ExcludesSoManyInAnHour) {
  GoalAnswers answers =
      New("exclude_straggler,after_s=10,pause_s=30,min_workers=1,per_hour=2");
  const absl::Duration began = now_;
  for (const uint32_t rank : {0u, 1u}) {
    slow_ = rank;
    ASSERT_TRUE(TrainAndGive(answers, 100));
    goals_[0].now = *goals_[0].now * 0.8;
  }
  slow_ = 2;
  while (now_ < began + absl::Minutes(55)) ASSERT_FALSE(Train(answers, 60));
  EXPECT_THAT(State(answers),
              HasSubstr("2 workers were excluded in the last hour, and no more may be"));
  EXPECT_TRUE(Train(answers, 400));
}

TEST_F(GoalAnswersTest, DoesNotExcludeWhereTheOthersWouldMakeNoMore) {
  job_.members.resize(2);
  slow_ = 1;
  computes_ = 0.45;  // half of 0.9: without it half the samples, in half the time
  job_.expected_workers = 2;
  GoalAnswers answers = New("exclude_straggler,after_s=10,factor=1.5");
  Goals("samples_per_s>=2000");
  EXPECT_FALSE(Train(answers, 300));
  EXPECT_THAT(State(answers), HasSubstr("the goal would hardly be closer without it"));
  Goals("samples_per_s>=2000,step_p95_ms<=500");
  const std::optional<Answer> answer = Train(answers, 10);
  ASSERT_TRUE(answer) << "but steps would be shorter";
  EXPECT_EQ(answer->goal.kind, GoalKind::kStepP95);
}

TEST_F(GoalAnswersTest, CountWhatAnEarlierLifeOfTheCoordinatorDid) {
  GoalAnswers answers = New("exclude_straggler,after_s=10,pause_s=60,per_hour=2");
  answers.Resume(2, now_);
  EXPECT_FALSE(Train(answers, 59));
  EXPECT_THAT(State(answers), HasSubstr("to see whether the last answer helps"));
  EXPECT_FALSE(Train(answers, 3500));
  EXPECT_THAT(State(answers), HasSubstr("does not know whether the last one helped"));
  EXPECT_TRUE(Train(answers, 100));
  GoalAnswers fresh = New("exclude_straggler,after_s=10");
  fresh.Resume(0, now_);
  EXPECT_FALSE(Train(fresh, 299)) << "the staleness may have changed just then";
  EXPECT_TRUE(Train(fresh, 30));
}

TEST_F(GoalAnswersTest, RememberWhatTheyDidUnderAnotherSetting) {
  GoalAnswers answers = New("exclude_straggler,after_s=10,pause_s=60,per_hour=1");
  ASSERT_TRUE(TrainAndGive(answers, 100));
  goals_[0].now = 800;
  slow_ = 0;
  answers.Set(AnswerSpec());
  answers.Set(*ParseAnswers("exclude_straggler,after_s=10,pause_s=60,per_hour=1"));
  EXPECT_FALSE(Train(answers, 300));
  answers.Set(*ParseAnswers("exclude_straggler,after_s=10,pause_s=60,per_hour=2"));
  EXPECT_FALSE(Train(answers, 30)) << "nobody has looked at steps meanwhile";
  EXPECT_TRUE(Train(answers, 30));
}

TEST_F(GoalAnswersTest, LetWorkersRunAheadWhereNoneIsSlowAlone) {
  GoalAnswers answers = New("exclude_straggler,staleness<=3,pause_s=30");
  job_.mode = "ssp:staleness=0";
  slow_.reset();
  for (const uint64_t staleness : {1u, 2u, 3u}) {
    const std::optional<Answer> answer = TrainAndGive(answers, 100);
    ASSERT_TRUE(answer) << staleness;
    EXPECT_EQ(answer->kind, AnswerKind::kStaleness);
    EXPECT_EQ(answer->staleness, staleness);
    goals_[0].now = *goals_[0].now * 0.8;
  }
  EXPECT_FALSE(Train(answers, 300));
  EXPECT_EQ(State(answers), "staleness is 3, and may not be raised further");
}

TEST_F(GoalAnswersTest, AddTheServerThatStandsByWhereNoWorkerIsSlow) {
  GoalAnswers answers = New("add_server,pause_s=30");
  slow_.reset();
  EXPECT_FALSE(Train(answers, 100));
  EXPECT_EQ(State(answers),
            "no server stands by that could take a share from one that has two");
  job_.standby = "c:8";
  const std::optional<Answer> answer = Train(answers, 1);
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->kind, AnswerKind::kAddServer);
  EXPECT_EQ(answer->why,
            "server c:8, which stands by, gets a share from a server that has two: no "
            "worker is a straggler; goal step_p95_ms<=500 is missed: 1000");
  answers.Gave(*answer, now_);
  EXPECT_EQ(answers.View(now_).given.at("add_server"), 1u);
  EXPECT_FALSE(Train(answers, 29)) << "one answer at a time";
  EXPECT_FALSE(Train(answers, 3600));
  EXPECT_EQ(State(answers), "server c:8 still stands by: the last one did not help");
  EXPECT_TRUE(Train(answers, 100));
}

TEST_F(GoalAnswersTest, AddNoServerWhereAllWaitForAWorker) {
  GoalAnswers answers = New("add_server");
  job_.standby = "c:8";
  EXPECT_FALSE(Train(answers, 300)) << "also before it is known that one is slow";
  EXPECT_EQ(State(answers), "all wait for one worker, so another server would not help");
}

TEST_F(GoalAnswersTest, AddNoServerWhereWorkersComputeAllTheTime) {
  GoalAnswers answers = New("add_server");
  job_.standby = "c:8";
  slow_.reset();
  computes_ = 0.9;
  EXPECT_FALSE(Train(answers, 300));
  EXPECT_EQ(State(answers),
            "workers hardly wait for servers, so another one would not help");
}

TEST_F(GoalAnswersTest, ExcludeRatherThanAddAServer) {
  GoalAnswers answers = New("exclude_straggler,add_server,after_s=30");
  job_.standby = "c:8";
  ASSERT_FALSE(Train(answers, 10));
  const std::optional<Answer> answer = Train(answers, 100);
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->kind, AnswerKind::kExcludeStraggler);
}

TEST_F(GoalAnswersTest, ExcludeRatherThanRunAhead) {
  GoalAnswers answers = New("exclude_straggler,staleness<=3,after_s=30");
  job_.mode = "ssp:staleness=1";
  ASSERT_FALSE(Train(answers, 10));
  const std::optional<Answer> answer = Train(answers, 100);
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->kind, AnswerKind::kExcludeStraggler);
}

TEST_F(GoalAnswersTest, DoNotRunAheadWhereNobodyWaits) {
  GoalAnswers answers = New("staleness<=3");
  job_.mode = "ssp:staleness=0";
  slow_.reset();
  computes_ = 0.9;
  EXPECT_FALSE(Train(answers, 300));
  EXPECT_THAT(State(answers), HasSubstr("workers hardly wait for each other"));
}

TEST_F(GoalAnswersTest, ThatDidNotHelpOrCouldNotBeAreNotTriedAgainAtOnce) {
  GoalAnswers answers = New("staleness<=8,pause_s=30");
  job_.mode = "ssp:staleness=1";
  slow_.reset();
  ASSERT_TRUE(TrainAndGive(answers, 100));
  EXPECT_FALSE(Train(answers, 3600));
  EXPECT_EQ(State(answers), "staleness stays 2: the last one did not help");
  const std::optional<Answer> again = Train(answers, 100);
  ASSERT_TRUE(again);
  answers.Refused(*again, "no memory", now_);
  EXPECT_FALSE(Train(answers, 3500));
  EXPECT_EQ(State(answers), "staleness stays 2: no memory");
}

}  // namespace
}  // namespace syncline
