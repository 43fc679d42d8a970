#include "comm/job/goals.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;

TEST(Goals, AreReadInTheOrderOfTheirKinds) {
  const auto spec = ParseGoals(
      "participation>=0.9, samples_per_s>=2000,budget=0.05,step_p95_ms<=150,"
      "wire_mb_per_step<=40");
  ASSERT_TRUE(spec.ok()) << spec.status();
  ASSERT_EQ(spec->goals.size(), 4u);
  EXPECT_EQ(spec->goals[0].Written(), "samples_per_s>=2000");
  EXPECT_EQ(spec->goals[1].Written(), "step_p95_ms<=150");
  EXPECT_EQ(spec->goals[2].Written(), "participation>=0.9");
  EXPECT_EQ(spec->goals[3].Written(), "wire_mb_per_step<=40");
  EXPECT_EQ(spec->budget, 0.05);
}

TEST(Goals, MayBeMissedInOneHundredthOfTheTimeUnlessGiven) {
  const auto spec = ParseGoals("step_p95_ms<=150");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->budget, 0.01);
}

TEST(Goals, AreNoneWhenNoneAreGiven) {
  for (const char* none : {"", " ", "none"}) {
    const auto spec = ParseGoals(none);
    ASSERT_TRUE(spec.ok()) << spec.status();
    EXPECT_TRUE(spec->goals.empty());
  }
}

TEST(Goals, AreMetAtTheirLimit) {
  const Goal rate = {.kind = GoalKind::kSamplesPerSecond, .limit = 100};
  EXPECT_TRUE(rate.IsMetBy(100));
  EXPECT_FALSE(rate.IsMetBy(99));
  const Goal time = {.kind = GoalKind::kStepP95, .limit = 100};
  EXPECT_TRUE(time.IsMetBy(100));
  EXPECT_FALSE(time.IsMetBy(101));
}

TEST(Goals, ThatMeanTheSameAreWrittenTheSame) {
  EXPECT_EQ(CanonicalGoals(" participation >= 0.90,samples_per_s>=1234567.0"),
            "samples_per_s>=1234567,participation>=0.9");
  EXPECT_EQ(CanonicalGoals("step_p95_ms<=1e3,budget=0.01"), "step_p95_ms<=1000");
  EXPECT_EQ(CanonicalGoals("budget=0.05,step_p95_ms<=150"),
            "step_p95_ms<=150,budget=0.05");
  for (const char* none : {"", " ", "none"}) EXPECT_EQ(CanonicalGoals(none), "none");
  EXPECT_EQ(CanonicalGoals("speed>=1"), "speed>=1") << "what cannot be read";
}

std::string Refusal(const std::string& specification) {
  const auto spec = ParseGoals(specification);
  EXPECT_FALSE(spec.ok()) << specification;
  EXPECT_EQ(spec.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(spec.status().message());
}

TEST(Goals, ThatMakeNoSenseAreRefusedWithWhatIsAllowed) {
  EXPECT_THAT(Refusal("step_p95<=150"), HasSubstr("did you mean 'step_p95_ms'?"));
  EXPECT_THAT(Refusal("speed>=1"), HasSubstr("samples_per_s>=N"));
  EXPECT_THAT(Refusal("step_p95_ms>=150"), HasSubstr("step_p95_ms<=NUMBER"));
  EXPECT_THAT(Refusal("samples_per_s=10"), HasSubstr("samples_per_s>=NUMBER"));
  EXPECT_THAT(Refusal("participation>=1.5"), HasSubstr("from 0.001 to 1"));
  EXPECT_THAT(Refusal("participation>=nan"), HasSubstr("from 0.001 to 1"));
  EXPECT_THAT(Refusal("participation>="), HasSubstr("needs a number"));
  EXPECT_THAT(Refusal("participation"), HasSubstr("is not a goal"));
  EXPECT_THAT(Refusal("participation>=0.5,"), HasSubstr("is not a goal"));
  EXPECT_THAT(Refusal("participation>=0.5,participation>=0.9"), HasSubstr("twice"));
  EXPECT_THAT(Refusal("participation>=0.5,budget=1"), HasSubstr("to 0.1"));
  EXPECT_THAT(Refusal("budget=0.1"), HasSubstr("no goal"));
  EXPECT_THAT(Refusal(std::string(300, 'x')), HasSubstr("at most 256"));
}

}  // namespace
}  // namespace syncline
