#include "comm/job/total_steps.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/job/job_settings.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;

TEST(TotalSteps, AreANumberOrNone) {
  EXPECT_EQ(ParseTotalSteps("1000").value(), 1000u);
  EXPECT_EQ(ParseTotalSteps("1").value(), 1u);
  EXPECT_EQ(ParseTotalSteps("1000000000000000").value(), kMostTotalSteps);
  EXPECT_EQ(ParseTotalSteps("none").value(), 0u);
  for (const char* wrong : {"", "0", "-1", "1e3", "1000000000000001", "many"}) {
    const absl::Status refused = ParseTotalSteps(wrong).status();
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << wrong;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("allowed are whole numbers"));
  }
}

TEST(TotalSteps, WorkersNeedNotAgree) {
  JobSettings ours, theirs;
  ours.total_steps = "1000";
  theirs.total_steps = "998";
  EXPECT_EQ(FindDifference(ours, theirs), nullptr);
}

}  // namespace
}  // namespace syncline
