#include "cli/lr_curve.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>

#include "comm/base/failure.h"
#include "comm/base/temp_directory.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// Returns the curve of an ideal range test: it falls around 1e-3, is lowest at 1e-1, and
// then diverges.
std::vector<LossAtRate> TypicalCurve() {
  std::vector<LossAtRate> raw;
  for (int i = 0; i <= 120; ++i) {
    const double exponent = -6 + i * 0.05;
    const double fall = 2.0 / (1 + std::exp(4 * (exponent + 3)));
    const double blow_up = exponent > -1 ? std::pow(10, 2 * (exponent + 1)) - 1 : 0;
    raw.push_back({std::pow(10, exponent), 0.3 + fall + blow_up});
  }
  return raw;
}

TEST(LossCurve, AdvisesTheSteepestRateAndATenthOfTheBest) {
  const auto advice = AdviseRate(SmoothCurve(TypicalCurve()));
  ASSERT_TRUE(advice.has_value());
  EXPECT_GT(advice->steepest, 3e-4);
  EXPECT_LT(advice->steepest, 1e-2);
  EXPECT_GT(advice->tenth_of_best, 3e-3);
  EXPECT_LT(advice->tenth_of_best, 3e-2);
}

TEST(LossCurve, IsCutOffWhereItDiverges) {
  const LossCurve curve = SmoothCurve(TypicalCurve());
  ASSERT_TRUE(curve.diverged_at.has_value());
  EXPECT_GT(*curve.diverged_at, 0.1);
  EXPECT_LT(curve.points.size(), TypicalCurve().size());
  std::vector<LossAtRate> broken(20, {1e-3, 1.0});
  broken[10].loss = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(SmoothCurve(broken).points.size(), 10u);
}

TEST(LossCurve, GivesNoAdviceWithoutAFall) {
  std::vector<LossAtRate> rising;
  for (int i = 1; i < 30; ++i) rising.push_back({i * 1e-3, i * 0.01});
  EXPECT_FALSE(AdviseRate(SmoothCurve(rising)).has_value());
  EXPECT_FALSE(AdviseRate(SmoothCurve({})).has_value());
}

TEST(LossCurve, IsDrawnWithALongerBarForALargerLoss) {
  const std::string chart = DrawCurve(SmoothCurve(TypicalCurve()));
  EXPECT_THAT(chart, StartsWith("LR"));
  EXPECT_THAT(chart, HasSubstr("####"));
  EXPECT_EQ(DrawCurve({}), "no losses were reported\n");
}

TEST(LossCurve, IsWrittenAsLinesAndSaysWhenItCannot) {
  const TempDirectory directory;
  const std::string path = directory.File("curve.csv");
  const LossCurve curve = {.points = {{0.001, 2.5}, {0.002, 2.25}}};
  ASSERT_TRUE(WriteCurve(curve, std::nullopt, path).ok());
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_EQ(text.str(), "learning_rate,loss\n0.001,2.5\n0.002,2.25\n");
  EXPECT_EQ(WriteCurve(curve, std::nullopt, "/no/such/directory/c.csv").code(),
            absl::StatusCode::kPermissionDenied);
}

TEST(LossCurve, KnowsBeforeTheSweepWhereItCannotGo) {
  const TempDirectory directory;
  const std::string path = directory.File("c.csv");
  EXPECT_EQ(CheckCurvePath(path), absl::OkStatus());
  std::ofstream(path) << "an earlier curve\n";
  EXPECT_EQ(CheckCurvePath(path), absl::OkStatus());
  std::string kept;
  std::getline(std::ifstream(path), kept);
  EXPECT_EQ(kept, "an earlier curve");
  for (const char* wrong : {"/no/such/directory/c.csv", "c.pdf", "c"}) {
    const absl::Status status = CheckCurvePath(wrong);
    EXPECT_EQ(FailureOf(status), Failure::kUsage) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(wrong));
  }
}

}  // namespace
}  // namespace syncline
