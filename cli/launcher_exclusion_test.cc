// Tests runs from which the coordinator has excluded a worker.
#include <algorithm>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cli/launcher_test_util.h"
#include "comm/base/exit_codes.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;

TEST_F(LauncherTest, GoesOnWithoutAWorkerThatIsExcluded) {
  options_.workers = 3;
  options_.max_restarts = 3;
  options_.restart_pause = absl::ZeroDuration();
  const auto code = Run(absl::StrCat("echo $RANK >> ", Path("ran"),
                                     "; if [ $RANK = 1 ]; then exit 140; fi"));
  ASSERT_TRUE(code.ok()) << code.status();
  const std::string ran = Read("ran");
  EXPECT_EQ(std::ranges::count(ran, '1'), 1) << "it is not started again";
}

// The others have finished the job while the worker was away.
TEST_F(LauncherTest, IsDoneWhenAWorkerItStartedAgainCameTooLate) {
  options_.workers = 2;
  options_.max_restarts = 3;
  options_.restart_pause = absl::ZeroDuration();
  const auto code = Run(
      absl::StrCat("echo $RANK >> ", Path("ran"), "; if [ $RANK = 0 ]; then exit 0; fi; ",
                   "if [ -n \"$SYNCLINE_REJOIN\" ]; then exit 144; fi; exit 1"));
  ASSERT_TRUE(code.ok()) << code.status();
  EXPECT_EQ(*code, kExitDone);
  EXPECT_EQ(std::ranges::count(Read("ran"), '1'), 2) << "once, and once again";
}

// Knows one job. Its new run lacks a worker once a file exists.
class GatheringCoordinator : public v1::Coordinator::Service {
 public:
  explicit GatheringCoordinator(std::string since) : since_(std::move(since)) {
    ServerOptions options;
    options.listen = "127.0.0.1:0";
    options.services = {this};
    running_ = StartServer(options);
  }
  std::string address() const { return running_->address; }

  grpc::Status Status(grpc::ServerContext*, const v1::StatusRequest*,
                      v1::StatusReply* reply) override {
    v1::JobStatus& job = *reply->add_jobs();
    job.set_name("default");
    job.set_run_id("run");
    job.set_expected_workers(2);
    job.set_mode("bsp");
    const bool gathers = std::filesystem::exists(since_);
    job.set_phase(gathers ? "waiting" : "over");
    if (gathers) job.add_members();
    return grpc::Status::OK;
  }

 private:
  const std::string since_;
  absl::StatusOr<RunningServer> running_;
};

// The others have left the run with errors, and begin a new one.
TEST_F(LauncherTest, TakesAWorkerThatCameTooLateAlongWhenANewRunWaitsForIt) {
  GatheringCoordinator coordinator(Path("gathers"));
  options_.coordinator = coordinator.address();
  options_.run_id = "run";
  options_.workers = 2;
  options_.max_restarts = 3;
  options_.restart_pause = absl::ZeroDuration();
  const std::string late = Path("late");
  const std::string done = Path("done");
  const auto code = Run(absl::StrCat(
      "echo $RANK$SYNCLINE_REJOIN >> ", Path("ran"), "; if [ $RANK = 0 ]; then ",
      "while [ ! -e ", late, " ]; do sleep 0.01; done; ",
      "if [ -z \"$SYNCLINE_REJOIN\" ]; then exit 1; fi; touch ", Path("gathers"),
      "; while [ ! -e ", done, " ]; do sleep 0.01; done; exit 0; fi; ",
      "if [ -n \"$SYNCLINE_REJOIN\" ]; then touch ", late, "; exit 144; fi; ", "if [ -e ",
      late, " ]; then touch ", done, "; exit 0; fi; exit 1"));
  ASSERT_TRUE(code.ok()) << code.status();
  EXPECT_THAT(
      std::vector<std::string>(absl::StrSplit(Read("ran"), '\n', absl::SkipEmpty())),
      testing::UnorderedElementsAre("0", "1", "11", "01", "1"))
      << "the last life of rank 1 is to join any run";
}

// A restarted worker is no sign of a new run, since it may also find the job over.
TEST_F(LauncherTest, IsDoneWhenAllThatItStartedAgainCameTooLate) {
  GatheringCoordinator coordinator(Path("never"));
  options_.coordinator = coordinator.address();
  options_.run_id = "run";
  options_.workers = 3;
  options_.max_restarts = 3;
  options_.restart_pause = absl::ZeroDuration();
  const auto code = Run(absl::StrCat(
      "echo $RANK$SYNCLINE_REJOIN >> ", Path("ran"),
      "; if [ $RANK = 0 ]; then exit 0; fi; ",
      "if [ -n \"$SYNCLINE_REJOIN\" ]; then if [ $RANK = 1 ]; then ", "while [ ! -e ",
      Path("second"), " ]; do sleep 0.01; done; else touch ", Path("second"),
      "; sleep 0.2; fi; exit 144; fi; exit 1"));
  ASSERT_TRUE(code.ok()) << code.status();
  EXPECT_EQ(*code, kExitDone);
  EXPECT_THAT(
      std::vector<std::string>(absl::StrSplit(Read("ran"), '\n', absl::SkipEmpty())),
      testing::UnorderedElementsAre("0", "1", "2", "11", "21"));
}

// No worker has finished the job.
TEST_F(LauncherTest, FailsWhenTheLastOneFailsBesideAWorkerThatCameTooLate) {
  options_.workers = 2;
  options_.max_restarts = 1;
  options_.min_workers = 1;
  options_.restart_pause = absl::ZeroDuration();
  const std::string late = Path("late");
  EXPECT_FALSE(
      Run(absl::StrCat(
              "if [ $RANK = 1 ]; then if [ -n \"$SYNCLINE_REJOIN\" ]; then touch ", late,
              "; exit 144; fi; exit 1; fi; ",
              "if [ -z \"$SYNCLINE_REJOIN\" ]; then exit 1; fi; ", "while [ ! -e ", late,
              " ]; do sleep 0.01; done; sleep 0.2; exit 1"))
          .ok());
}

TEST_F(LauncherTest, TakesThatOfAWorkerItDidNotStartAgainForAFailure) {
  options_.workers = 1;
  EXPECT_FALSE(Run("exit 144").ok());
}

// The exit code tells a supervisor not to start it again on this host.
TEST_F(LauncherTest, EndsWithItsLastWorkerThatIsExcluded) {
  options_.max_restarts = 3;
  options_.restart_pause = absl::ZeroDuration();
  const auto code = Run("exit 140");
  EXPECT_EQ(ExitCodeOf(code.status()), kExitExcluded);
  EXPECT_THAT(std::string(code.status().message()),
              HasSubstr("worker 0 was excluded from its job as a straggler, and is not "
                        "started again, after "));
}

}  // namespace
}  // namespace syncline
