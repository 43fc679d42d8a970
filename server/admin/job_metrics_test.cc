#include "server/admin/job_metrics.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "prometheus/registry.h"
#include "prometheus/text_serializer.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class JobMetricsTest : public testing::Test {
 protected:
  std::string Shown() const {
    return prometheus::TextSerializer().Serialize(registry_.Collect());
  }

  prometheus::Registry registry_;
  JobMetrics metrics_{registry_};
};

JobView Job(uint32_t number, const std::string& name) {
  return {.job = number,
          .name = name,
          .phase = JobPhase::kRunning,
          .expected_workers = 4,
          .expected_servers = 2,
          .attached_servers = 1,
          .participants = 3,
          .staleness = 2,
          .pushed = {.pushed_values = 10, .pushed_value_bytes = 5},
          .epoch_changes = {{"begin", 1}, {"death", 2}},
          .mode = "ssp:staleness=3",
          .learning_rate = 0.25,
          .loss_scale = 1024,
          .skipped_steps = 7,
          .left_out = 6,
          .checkpoint = {.written = 4, .failed = 1},
          .recoveries = {.rollbacks = 5},
          .moves = 3};
}

TEST_F(JobMetricsTest, ShowWhatTheCoordinatorKnows) {
  JobView job = Job(1, "bert");
  metrics_.Show({.jobs = {job}});
  EXPECT_THAT(Shown(), Not(HasSubstr("syncline_loss{"))) << "none was reported";
  EXPECT_THAT(Shown(), Not(HasSubstr("syncline_gradient_norm{"))) << "it does not clip";
  job.loss = 0.5;
  job.gradient_norm = 3.5;
  metrics_.Show({.jobs = {job}});
  metrics_.Show({.jobs = {job}});
  for (const char* line :
       {"syncline_loss{job_name=\"bert\"} 0.5\n",
        "syncline_gradient_norm{job_name=\"bert\"} 3.5\n",
        "syncline_learning_rate{job_name=\"bert\"} 0.25\n",
        "syncline_loss_scale{job_name=\"bert\"} 1024\n",
        "syncline_expected_workers{job_name=\"bert\"} 4\n",
        "syncline_expected_servers{job_name=\"bert\"} 2\n",
        "syncline_attached_servers{job_name=\"bert\"} 1\n",
        "syncline_participants{job_name=\"bert\"} 3\n",
        "syncline_staleness_steps{job_name=\"bert\",mode=\"ssp\"} 2\n",
        "syncline_skipped_steps_total{job_name=\"bert\"} 7\n",
        "syncline_left_out_total{job_name=\"bert\"} 6\n",
        "syncline_rollbacks_total{job_name=\"bert\"} 5\n",
        "syncline_moves_total{job_name=\"bert\"} 3\n",
        "syncline_checkpoints_total{job_name=\"bert\",result=\"written\"} 4\n",
        "syncline_checkpoints_total{job_name=\"bert\",result=\"failed\"} 1\n",
        "syncline_epoch_changes_total{cause=\"death\",job_name=\"bert\"} 2\n",
        "syncline_epoch_changes_total{cause=\"join\",job_name=\"bert\"} 0\n",
        "syncline_gradient_bytes_total{form=\"fp32\",job_name=\"bert\"} 40\n",
        "syncline_gradient_bytes_total{form=\"wire\",job_name=\"bert\"} 5\n"}) {
    EXPECT_THAT(Shown(), HasSubstr(line));
  }
}

TEST_F(JobMetricsTest, OfCodecsHaveTheirNamesOnlyAndFollowChanges) {
  JobView job = Job(1, "bert");
  job.push_codec = "fp32@norm*;topk:ratio=0.01";
  job.publish_codec = "bf16";
  metrics_.Show({.jobs = {job}});
  EXPECT_THAT(Shown(), HasSubstr("syncline_codec_info{job_name=\"bert\","
                                 "publish=\"bf16\",push=\"topk\"} 1\n"));
  job.push_codec = "auto";
  metrics_.Show({.jobs = {job}});
  EXPECT_THAT(Shown(), HasSubstr("push=\"auto\"} 1\n"));
  EXPECT_THAT(Shown(), Not(HasSubstr("topk")));
  job.phase = JobPhase::kOver;
  metrics_.Show({.jobs = {job}});
  EXPECT_THAT(Shown(), Not(HasSubstr("syncline_codec_info{")));
}

TEST_F(JobMetricsTest, OfPushesAreThereForJobsThatPush) {
  JobView job = Job(1, "bert");
  metrics_.Show({.jobs = {job}});
  EXPECT_THAT(Shown(), Not(HasSubstr("syncline_trainjob_pushes_total{")));
  job.pushes = PushCounts{.sent = 5, .failed = 2};
  metrics_.Show({.jobs = {job}});
  EXPECT_THAT(Shown(), HasSubstr("syncline_trainjob_pushes_total{job_name=\"bert\","
                                 "result=\"sent\"} 5\n"));
  EXPECT_THAT(Shown(), HasSubstr("result=\"failed\"} 2\n"));
  job.phase = JobPhase::kOver;
  metrics_.Show({.jobs = {job}});
  EXPECT_THAT(Shown(), Not(HasSubstr("syncline_trainjob_pushes_total{")));
}

TEST_F(JobMetricsTest, OfSamplesGrowThroughTheLivesOfMembers) {
  JobView job = Job(1, "bert");
  const auto shows = [&](const char* sum) {
    metrics_.Show({.jobs = {job}});
    EXPECT_THAT(Shown(), HasSubstr(absl::StrCat(
                             "syncline_samples_total{job_name=\"bert\"} ", sum, "\n")));
  };
  shows("0");
  job.members = {{.rank = 0, .samples = 64}, {.rank = 1, .samples = 32}};
  shows("96");
  job.members = {{.rank = 0, .samples = 128}};
  shows("160");
  job.members = {{.rank = 0, .samples = 128}, {.rank = 1, .samples = 32}};
  shows("192");
}

TEST_F(JobMetricsTest, OfTwoJobsNeverMixAndEndWithTheirs) {
  JobView bert = Job(1, "bert");
  JobView resnet = Job(2, "resnet");
  resnet.skipped_steps = 1;
  metrics_.Show({.jobs = {bert, resnet}});
  EXPECT_THAT(Shown(), HasSubstr("skipped_steps_total{job_name=\"bert\"} 7\n"));
  EXPECT_THAT(Shown(), HasSubstr("skipped_steps_total{job_name=\"resnet\"} 1\n"));
  bert.phase = JobPhase::kFailed;
  metrics_.Show({.jobs = {bert, resnet}});
  EXPECT_THAT(Shown(), Not(HasSubstr("bert")));
  EXPECT_THAT(Shown(), HasSubstr("skipped_steps_total{job_name=\"resnet\"} 1\n"));
}

TEST_F(JobMetricsTest, OfGoalsComeAndGoWithThem) {
  JobView job = Job(1, "bert");
  metrics_.Show({.jobs = {job}});
  EXPECT_THAT(Shown(), Not(HasSubstr("syncline_goal_limit{")));
  job.goals = {{.goal = {GoalKind::kStepP95, 150},
                .now = 163,
                .budget = 0.01,
                .budget_left = 0.25,
                .burn_rate_5m = 12,
                .burn_rate_1h = 0.75,
                .missed_windows = 3,
                .met_seconds = 300,
                .missed_seconds = 27,
                .missed_in = absl::Minutes(9)}};
  metrics_.Show({.jobs = {job}});
  for (const char* line :
       {"syncline_goal_limit{goal=\"step_p95_ms\",job_name=\"bert\"} 150\n",
        "syncline_goal_value{goal=\"step_p95_ms\",job_name=\"bert\"} 163\n",
        "syncline_goal_budget_left_ratio{goal=\"step_p95_ms\",job_name=\"bert\"} 0.25\n",
        "syncline_goal_missed_windows{goal=\"step_p95_ms\",job_name=\"bert\"} 3\n",
        "syncline_goal_will_be_missed{goal=\"step_p95_ms\",job_name=\"bert\"} 1\n"}) {
    EXPECT_THAT(Shown(), HasSubstr(line));
  }
  EXPECT_THAT(Shown(), HasSubstr("window=\"5m\"} 12\n"));
  EXPECT_THAT(Shown(), HasSubstr("window=\"1h\"} 0.75\n"));
  EXPECT_THAT(Shown(), HasSubstr("result=\"missed\"} 27\n"));
  job.goals[0].missed_seconds = 5;  // of other goals
  metrics_.Show({.jobs = {job}});
  EXPECT_THAT(Shown(), HasSubstr("result=\"missed\"} 5\n"));
  job.goals.clear();
  metrics_.Show({.jobs = {job}});
  EXPECT_THAT(Shown(), Not(HasSubstr("syncline_goal_limit{")));
}

TEST_F(JobMetricsTest, OfAnswersEndWithTheirJob) {
  JobView job = Job(1, "bert");
  metrics_.Show({.jobs = {job}});
  EXPECT_THAT(Shown(), Not(HasSubstr("syncline_goal_answers_total{")));
  job.answers = AnswersView{.given = {{"exclude_straggler", 1}, {"staleness", 0}}};
  metrics_.Show({.jobs = {job}});
  EXPECT_THAT(Shown(),
              HasSubstr("syncline_goal_answers_total{answer=\"exclude_straggler\","
                        "job_name=\"bert\"} 1\n"));
  EXPECT_THAT(Shown(), HasSubstr("syncline_goal_answers_total{answer=\"staleness\","
                                 "job_name=\"bert\"} 0\n"));
  job.phase = JobPhase::kOver;
  metrics_.Show({.jobs = {job}});
  EXPECT_THAT(Shown(), Not(HasSubstr("syncline_goal_answers_total{")));
}

TEST_F(JobMetricsTest, OfASuccessorOfTheSameNameBeginAnew) {
  metrics_.Show({.jobs = {Job(1, "bert")}});
  JobView next = Job(2, "bert");
  next.skipped_steps = 1;
  metrics_.Show({.jobs = {next}});
  EXPECT_THAT(Shown(), HasSubstr("skipped_steps_total{job_name=\"bert\"} 1\n"));
}

}  // namespace
}  // namespace syncline
