// What becomes of a run of which the coordinator has excluded a worker.
#include <algorithm>
#include <string>
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

// The others have finished the job while it was away.
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

// Here they have left it with errors, and begin it anew.
TEST_F(LauncherTest, TakesAWorkerThatCameTooLateAlongWhenAnotherOneIsStartedAgain) {
  options_.workers = 2;
  options_.max_restarts = 3;
  options_.restart_pause = absl::ZeroDuration();
  const std::string late = Path("late");
  const auto code = Run(absl::StrCat(
      "echo $RANK$SYNCLINE_REJOIN >> ", Path("ran"), "; if [ $RANK = 0 ]; then ",
      "if [ -e ", late, " ]; then exit 0; fi; ", "while [ ! -e ", late,
      " ]; do sleep 0.01; done; sleep 0.2; exit 1; fi; ",
      "if [ -n \"$SYNCLINE_REJOIN\" ]; then touch ", late, "; exit 144; fi; ", "if [ -e ",
      late, " ]; then exit 0; fi; exit 1"));
  ASSERT_TRUE(code.ok()) << code.status();
  EXPECT_THAT(
      std::vector<std::string>(absl::StrSplit(Read("ran"), '\n', absl::SkipEmpty())),
      testing::UnorderedElementsAre("0", "1", "11", "01", "1"))
      << "the last life of rank 1 is to join any run";
}

// Nobody has finished it.
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

// With the code by which a supervisor knows not to start it again on this host.
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
