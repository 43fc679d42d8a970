#include "worker/examples/fashion_mnist/run_report.h"
#include "comm/base/temp_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace syncline::fashion_mnist {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kMiB = 1 << 20;

RunReport Example(const std::string& name) {
  return {.name = name,
          .precision = name,
          .workers = 4,
          .steps = 1175,
          .parameters = 825'000,
          .accuracy = 0.9125,
          .loss = 0.2,
          .seconds = 40,
          .samples_per_second = 7500,
          .bytes_pushed = 3'000'000'000,
          .bytes_pulled = 2000 * kMiB};
}

TEST(RunReport, SurvivesJson) {
  const RunReport report = Example("fp32");
  const absl::StatusOr<RunReport> parsed = ParseRunReport(ToJson(report));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(ToJson(*parsed), ToJson(report));
  EXPECT_EQ(parsed->bytes_pushed, 3'000'000'000);
  EXPECT_DOUBLE_EQ(parsed->accuracy, 0.9125);
}

TEST(RunReport, ShowsWhatWasTestedOnTheWay) {
  RunReport report = Example("fp32");
  report.evaluations = {{.step = 50, .seconds = 3, .accuracy = 0.8, .bytes_pushed = 7}};
  const auto json = nlohmann::json::parse(ToJson(report));
  ASSERT_EQ(json["evaluations"].size(), 1u);
  EXPECT_EQ(json["evaluations"][0]["step"], 50);
  EXPECT_EQ(json["evaluations"][0]["accuracy"], 0.8);
  EXPECT_TRUE(ParseRunReport(ToJson(report)).ok());
}

TEST(RunReport, NamesTheFieldThatIsMissingOrOfAnotherType) {
  auto json = nlohmann::json::parse(ToJson(Example("fp32")));
  json["accuracy"] = "high";
  EXPECT_THAT(std::string(ParseRunReport(json.dump()).status().message()),
              HasSubstr("'accuracy'"));
  json["accuracy"] = 0.9;
  json.erase("bytes_pulled");
  EXPECT_THAT(std::string(ParseRunReport(json.dump()).status().message()),
              HasSubstr("'bytes_pulled'"));
}

TEST(RunReport, RefusesWhatIsNoObject) {
  for (const char* text : {"", "[]", "{", "3", "null"}) {
    EXPECT_EQ(ParseRunReport(text).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(RunReport, MergesTheBytesOfAllRanksIntoTheReportOfRankZero) {
  RunReport helper = Example("fp32");
  helper.rank = 1;
  helper.accuracy = 0;
  helper.bytes_pushed = 5;
  helper.bytes_pulled = 7;
  for (const auto& order : {std::vector{Example("fp32"), helper, Example("bf16")},
                            std::vector{helper, Example("fp32"), Example("bf16")}}) {
    const absl::StatusOr<std::vector<RunReport>> runs = MergeRanks(order);
    ASSERT_TRUE(runs.ok()) << runs.status();
    ASSERT_EQ(runs->size(), 2u);
    EXPECT_EQ(runs->at(0).name, "fp32");
    EXPECT_EQ(runs->at(0).rank, 0);
    EXPECT_EQ(runs->at(0).accuracy, 0.9125);
    EXPECT_EQ(runs->at(0).bytes_pushed, 3'000'000'005);
    EXPECT_EQ(runs->at(0).bytes_pulled, 2000 * kMiB + 7);
    EXPECT_EQ(runs->at(1).bytes_pushed, 3'000'000'000);
  }
}

TEST(RunReport, MergeRefusesARunWithoutRankZeroAndARankTwice) {
  RunReport helper = Example("fp32");
  helper.rank = 1;
  EXPECT_THAT(std::string(MergeRanks({helper}).status().message()),
              HasSubstr("no report of rank 0"));
  EXPECT_THAT(std::string(MergeRanks({helper, helper}).status().message()),
              HasSubstr("two reports of rank 1"));
}

TEST(RunReport, EveryRankHasItsOwnFile) {
  EXPECT_EQ(RankPath("a.json", 0), "a.json");
  EXPECT_EQ(RankPath("a.json", 3), "a.json.rank3");
}

TEST(RunReport, ReadsTheFilesOfAllRanksAsOneRun) {
  const TempDirectory directory;
  const std::string path = directory.File("ranks.json");
  std::vector<std::string> paths;
  for (int64_t rank = 0; rank < 4; ++rank) {
    RunReport report = Example("fp32");
    report.rank = rank;
    report.bytes_pushed = 10 + rank;
    paths.push_back(RankPath(path, rank));
    ASSERT_TRUE(WriteTextFile(paths.back(), ToJson(report)).ok());
  }
  const absl::StatusOr<std::vector<RunReport>> runs = ReadRuns(paths);
  ASSERT_TRUE(runs.ok()) << runs.status();
  ASSERT_EQ(runs->size(), 1u);
  EXPECT_EQ(runs->front().bytes_pushed, 46);
  EXPECT_EQ(ReadRuns({path, path + "x"}).status().code(), absl::StatusCode::kNotFound);
}

TEST(RunReport, SummaryHoldsEveryRun) {
  const auto json =
      nlohmann::json::parse(SummaryJson({Example("fp32"), Example("bf16")}));
  ASSERT_EQ(json.at("runs").size(), 2u);
  EXPECT_EQ(json["runs"][1]["name"], "bf16");
  for (const auto& run : json["runs"]) {
    EXPECT_EQ(run["accuracy"], 0.9125);
    EXPECT_EQ(run["seconds"], 40.0);
    EXPECT_EQ(run["bytes_pushed"], 3'000'000'000);
    EXPECT_EQ(run["bytes_pulled"], 2000 * kMiB);
  }
}

TEST(RunReport, TableComparesTheLastRunWithTheFirst) {
  RunReport bf16 = Example("bf16");
  bf16.accuracy = 0.911;
  bf16.seconds = 30;
  bf16.samples_per_second = 10'000;
  bf16.bytes_pushed /= 2;
  bf16.bytes_pulled /= 2;
  EXPECT_EQ(
      SummaryTable({Example("fp32"), bf16}),
      "run              accuracy   seconds   samples/s   pushed MiB   pulled MiB\n"
      "fp32              91.25 %      40.0        7500       2861.0       2000.0\n"
      "bf16              91.10 %      30.0       10000       1430.5       1000.0\n"
      "bf16 / fp32       -0.15 pt    0.75x       1.33x        0.50x        0.50x\n");
}

TEST(RunReport, TableOfOneRunComparesNothing) {
  EXPECT_THAT(SummaryTable({Example("fp32")}), ::testing::Not(HasSubstr("/ fp32")));
}

TEST(RunReport, RatioOfNothingIsADash) {
  RunReport local = Example("local");
  local.bytes_pushed = local.bytes_pulled = 0;
  EXPECT_THAT(SummaryTable({local, Example("fp32")}),
              HasSubstr("            -            -\n"));
}

TEST(RunReport, FilesSayTheirNameInErrors) {
  const TempDirectory directory;
  const std::string path = directory.File("reports/one.json");
  ASSERT_TRUE(WriteTextFile(path, "{}").ok());
  EXPECT_THAT(std::string(ReadRunReport(path).status().message()), HasSubstr(path));
  ASSERT_TRUE(WriteTextFile(path, ToJson(Example("fp32"))).ok());
  EXPECT_TRUE(ReadRunReport(path).ok());
  EXPECT_EQ(ReadRunReport(path + "x").status().code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(WriteTextFile("/proc/no/such.json", "").ok());
}

}  // namespace
}  // namespace syncline::fashion_mnist
