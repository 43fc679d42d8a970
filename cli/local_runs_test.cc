#include "cli/local_runs.h"

#include <filesystem>
#include <fstream>
#include <optional>

#include "comm/base/failure.h"
#include "comm/base/temp_directory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(LocalRuns, OneIsFoundAsLongAsItsLauncherLives) {
  const TempDirectory directory;
  const std::string runs = directory.File("state/runs");
  EXPECT_THAT(FindLocalRuns(runs), IsEmpty());
  std::optional<LocalRun> run(LocalRun(runs, "127.0.0.1:4711", "bert"));
  const auto found = FindLocalRuns(runs);
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].coordinator, "127.0.0.1:4711");
  EXPECT_EQ(found[0].job, "bert");
  run.reset();
  EXPECT_THAT(FindLocalRuns(runs), IsEmpty());
}

TEST(LocalRuns, WhatADeadLauncherLeftIsRemoved) {
  const TempDirectory directory;
  std::ofstream(directory.File("17")) << "127.0.0.1:4711\nbert\n";
  EXPECT_THAT(FindLocalRuns(directory.path()), IsEmpty());
  EXPECT_FALSE(std::filesystem::exists(directory.File("17")));
}

TEST(LocalRuns, WithoutAPlaceARunIsNotAnnounced) {
  const LocalRun run("/proc/no/place", "127.0.0.1:4711", "bert");
  const LocalRun nowhere("", "127.0.0.1:4711", "bert");
  EXPECT_THAT(FindLocalRuns("/proc/no/place"), IsEmpty());
}

TEST(LocalRuns, WhatIsGivenComesFirstThenTheDefaultThenTheOnlyRun) {
  const FoundRun bert = {"127.0.0.1:4711", "bert"};
  EXPECT_EQ(*ChooseCoordinator("far:1", {bert}, true), "far:1");
  EXPECT_EQ(*ChooseCoordinator("", {bert}, true), "127.0.0.1:7070");
  EXPECT_EQ(*ChooseCoordinator("", {bert}, false), "127.0.0.1:4711");
  EXPECT_EQ(*ChooseCoordinator("", {}, false), "127.0.0.1:7070");
  const auto several = ChooseCoordinator("", {bert, {"127.0.0.1:4712", "gpt"}}, false);
  EXPECT_EQ(FailureOf(several.status()), Failure::kUsage);
  EXPECT_THAT(std::string(several.status().message()),
              HasSubstr("--coordinator 127.0.0.1:4711 (job bert), --coordinator "
                        "127.0.0.1:4712 (job gpt)"));
}

TEST(LocalRuns, AreKnownByTheirCoordinators) {
  const std::vector<FoundRun> runs = {{"127.0.0.1:1", "bert"}, {"127.0.0.1:2", "gpt"}};
  EXPECT_THAT(JobsStartedWith("127.0.0.1:2", runs), testing::ElementsAre("gpt"));
  EXPECT_THAT(JobsStartedWith("127.0.0.1:3", runs), IsEmpty());
}

TEST(LocalRuns, AJobsNameChoosesAmongThem) {
  const std::vector<FoundRun> runs = {
      {"127.0.0.1:4711", "bert"}, {"127.0.0.1:4712", "gpt"}, {"127.0.0.1:4713", "gpt"}};
  EXPECT_EQ(*ChooseCoordinator("", RunsOf("bert", runs), false), "127.0.0.1:4711");
  EXPECT_THAT(RunsOf("gpt", runs), SizeIs(2));
  EXPECT_THAT(RunsOf("other", runs), SizeIs(3));
  EXPECT_THAT(RunsOf("", runs), SizeIs(3));
}

}  // namespace
}  // namespace syncline
