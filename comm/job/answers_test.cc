// The automatic answers of the coordinator, as users write them.
#include "comm/job/answers.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;

std::string Refusal(std::string_view specification) {
  const absl::StatusOr<AnswerSpec> spec = ParseAnswers(specification);
  EXPECT_TRUE(absl::IsInvalidArgument(spec.status())) << specification;
  return std::string(spec.status().message());
}

TEST(Answers, AreNoneUnlessTheyAreSaid) {
  for (const char* none : {"", " ", "none"}) {
    ASSERT_TRUE(ParseAnswers(none).ok());
    EXPECT_TRUE(ParseAnswers(none)->empty());
    EXPECT_EQ(CanonicalAnswers(none), "none");
  }
}

TEST(Answers, HaveDefaultsThatBoundThem) {
  const AnswerSpec spec = *ParseAnswers("exclude_straggler");
  EXPECT_TRUE(spec.excludes);
  EXPECT_EQ(spec.staleness, 0u);
  EXPECT_EQ(spec.factor, 2);
  EXPECT_EQ(spec.after, absl::Minutes(1));
  EXPECT_EQ(spec.pause, absl::Minutes(5));
  EXPECT_EQ(spec.per_hour, 2u);
  EXPECT_EQ(spec.LeastWorkers(4), 2u);
  EXPECT_EQ(spec.LeastWorkers(5), 3u);
}

TEST(Answers, AreReadWithTheirOptions) {
  const AnswerSpec spec = *ParseAnswers(
      " staleness <= 8 , exclude_straggler, factor=1.5,after_s=20, pause_s=30,per_hour=4,"
      "min_workers=3");
  EXPECT_TRUE(spec.excludes);
  EXPECT_EQ(spec.staleness, 8u);
  EXPECT_EQ(spec.factor, 1.5);
  EXPECT_EQ(spec.after, absl::Seconds(20));
  EXPECT_EQ(spec.pause, absl::Seconds(30));
  EXPECT_EQ(spec.per_hour, 4u);
  EXPECT_EQ(spec.LeastWorkers(100), 3u);
}

TEST(Answers, ThatMeanTheSameAreWrittenAlike) {
  EXPECT_EQ(CanonicalAnswers(" staleness <= 8.0,factor=2, exclude_straggler,pause_s=30"),
            "exclude_straggler,staleness<=8,pause_s=30");
  EXPECT_EQ(CanonicalAnswers("staleness<=8"), "staleness<=8");
  EXPECT_EQ(CanonicalAnswers("nothing"), "nothing");
  EXPECT_EQ(CanonicalAnswers("add_server, pause_s=30"), "add_server,pause_s=30");
  for (const char* one : {"exclude_straggler,staleness<=8,add_server",
                          "exclude_straggler,factor=1.5,after_s=20,pause_s=30,per_hour=4,"
                          "min_workers=3",
                          "exclude_straggler,staleness<=64"}) {
    EXPECT_EQ(CanonicalAnswers(one), one);
  }
}

TEST(Answers, ThatAreWrongSayWhichPartAndWhatIsAllowed) {
  EXPECT_THAT(Refusal("exclude_stragler"),
              HasSubstr("did you mean 'exclude_straggler'?"));
  EXPECT_THAT(Refusal("codec"), HasSubstr("'codec' is not an answer; there are "));
  EXPECT_THAT(Refusal("exclude_straggler=2"), HasSubstr("factor= and after_s= say when"));
  EXPECT_THAT(Refusal("add_server=2"), HasSubstr("has no number"));
  EXPECT_THAT(Refusal("staleness=8"), HasSubstr("must be written staleness<=N"));
  EXPECT_THAT(Refusal("staleness<=65"), HasSubstr("a whole number from 1 to 64"));
  EXPECT_THAT(Refusal("staleness<=1.5"), HasSubstr("a whole number from 1 to 64"));
  EXPECT_THAT(Refusal("exclude_straggler,factor"), HasSubstr("must be written factor=N"));
  for (const char* wrong : {"factor=1.1", "factor=nan", "factor=", "factor=x"}) {
    EXPECT_THAT(Refusal(absl::StrCat("exclude_straggler,", wrong)),
                HasSubstr("needs a number from 1.2 to 100"));
  }
  EXPECT_THAT(Refusal("exclude_straggler,exclude_straggler"),
              HasSubstr("is given twice"));
  EXPECT_THAT(Refusal("pause_s=30"), HasSubstr("names no answer"));
  EXPECT_THAT(
      Refusal("staleness<=8,min_workers=2"),
      HasSubstr("'min_workers' belongs to exclude_straggler, which is not given"));
  EXPECT_THAT(Refusal(std::string(257, 'x')), HasSubstr("at most 256 are allowed"));
}

}  // namespace
}  // namespace syncline
