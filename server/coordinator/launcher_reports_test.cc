// What launchers report about pushes of progress, and how many steps a job is going to
// make.
#include "server/coordinator/launcher_reports.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/coordinator/coordinator_test_util.h"

namespace syncline {
namespace {

class LauncherReports : public CoordinatorTest {
 protected:
  JobView View() { return coordinator_->View(now_).jobs.at(0); }
  // Returns what the view of a job with this declaration says.
  uint64_t TotalSteps(const JobSpec& job) {
    AttachServer(1);
    SayHello(10, job, {.name = "w"});
    return View().total_steps;
  }
};

TEST_F(LauncherReports, PushesAreAddedOverAllLaunchers) {
  Begin();
  EXPECT_FALSE(View().pushes.has_value());
  const auto report = [this](uint64_t sent, uint64_t failed) {
    return Call(TrainJobPushes{
                    .job = "job", .run_id = "run", .sent = sent, .failed = failed})
        .status;
  };
  ASSERT_TRUE(report(0, 0).ok());
  ASSERT_TRUE(View().pushes.has_value()) << "counters begin at zero";
  EXPECT_EQ(View().pushes->sent, 0u);
  ASSERT_TRUE(report(5, 1).ok());
  ASSERT_TRUE(report(7, 1).ok());
  ASSERT_TRUE(report(7, 1).ok());
  EXPECT_EQ(View().pushes->sent, 7u);
  EXPECT_EQ(View().pushes->failed, 1u);
  ASSERT_TRUE(report(2, 0).ok());  // of a new launcher
  ASSERT_TRUE(report(3, 2).ok());
  EXPECT_EQ(View().pushes->sent, 10u);
  EXPECT_EQ(View().pushes->failed, 3u);
}

TEST_F(LauncherReports, PushesOfNobodyKnownAreRefused) {
  Begin();
  EXPECT_TRUE(absl::IsNotFound(
      Call(TrainJobPushes{.job = "jobs", .run_id = "run", .sent = 1}).status));
  EXPECT_TRUE(absl::IsNotFound(
      Call(TrainJobPushes{.job = "job", .run_id = "other", .sent = 1}).status));
  EXPECT_FALSE(View().pushes.has_value());
}

TEST_F(LauncherReports, TotalStepsAreUnknownUnlessSomebodySaysThem) {
  EXPECT_EQ(TotalSteps(TwoTensors(1)), 0u);
}

TEST_F(LauncherReports, TotalStepsAreThoseOfTheSchedule) {
  JobSpec job = TwoTensors(1);
  job.training.schedule = {.name = "cosine", .values = {{"total_steps", 300}}};
  job.training.accumulate_steps = 2;
  EXPECT_EQ(TotalSteps(job), 600u) << "a schedule counts updates";
}

TEST_F(LauncherReports, TotalStepsThatTheProgramSaysGoFirst) {
  JobSpec job = TwoTensors(1);
  job.training.schedule = {.name = "cosine", .values = {{"total_steps", 300}}};
  job.settings.total_steps = "250";
  EXPECT_EQ(TotalSteps(job), 250u);
}

TEST_F(LauncherReports, TotalStepsOfModeAspAreNotThoseOfTheSchedule) {
  JobSpec job = TwoTensors(1);
  job.training.schedule = {.name = "cosine", .values = {{"total_steps", 300}}};
  job.training.mode = {.name = "asp"};
  EXPECT_EQ(TotalSteps(job), 0u);
}

}  // namespace
}  // namespace syncline
