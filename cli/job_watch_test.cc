#include "cli/job_watch.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "comm/base/failure.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Of job "bert", beside another one.
std::string Status(const std::string& phase, uint64_t step, const std::string& saved) {
  return absl::StrCat(R"({"jobs":[{"name":"other","phase":"failed","step":9},)",
                      R"({"name":"bert","phase":")", phase, R"(","step":)", step,
                      R"(,"reason":"server 1 is lost","checkpoint":{)", saved, "}}]}");
}

TEST(JobNews, SaysOnceWithWhatAJobBeganAndWhatFailed) {
  JobNews news("bert");
  EXPECT_THAT(news.Take("no status"), IsEmpty());
  EXPECT_THAT(news.Take(R"({"jobs":[]})"), IsEmpty());
  EXPECT_FALSE(news.is_known());
  const std::string began = R"("resumed_from":"run1-step500")";
  EXPECT_THAT(news.Take(Status("running", 500, began)),
              ElementsAre("job bert goes on from checkpoint run1-step500"));
  EXPECT_THAT(news.Take(Status("running", 501, began)), IsEmpty());
  const std::string failed = began + R"(,"failed":1,"error":"run2-step600: disk full")";
  EXPECT_THAT(news.Take(Status("running", 600, failed)),
              ElementsAre("a checkpoint of job bert failed, earlier ones stay: "
                          "run2-step600: disk full"));
  EXPECT_THAT(news.Take(Status("running", 601, failed)), IsEmpty());
  news.Take(Status("over", 700, failed));
  EXPECT_TRUE(news.Ended().ok()) << "that was not its last step";
}

TEST(JobNews, SaysNothingOfAnotherRunThatIsAtItsEnd) {
  const auto numbered = [](int number, const std::string& phase) {
    return absl::StrCat(R"({"jobs":[{"name":"bert","step":20,"job":)", number,
                        R"(,"phase":")", phase,
                        R"(","checkpoint":{"latest":"run1-step20"}}]})");
  };
  JobNews news("bert");
  news.Skip(numbered(3, "saving"));
  EXPECT_THAT(news.Take(numbered(3, "saving")), IsEmpty());
  EXPECT_THAT(news.Take(numbered(3, "over")), IsEmpty());
  EXPECT_FALSE(news.is_known());
  EXPECT_THAT(news.Take(numbered(4, "over")), SizeIs(1));
}

TEST(JobNews, SaysThatTheLastStepIsSaved) {
  JobNews news("bert");
  EXPECT_THAT(news.Take(Status("saving", 20, R"("latest":"run1-step10")")),
              ElementsAre(HasSubstr("saving the last step of job bert, for at most")));
  EXPECT_TRUE(news.is_saving());
  EXPECT_THAT(
      news.Take(Status("over", 20, R"("latest":"run1-step20","bytes":2000000)")),
      ElementsAre(HasSubstr("job bert is saved: checkpoint run1-step20, 2.0 MB")));
  EXPECT_TRUE(news.Ended().ok());
}

TEST(JobNews, AnEndWithoutTheLastStepIsAFailureWithAnExitCode) {
  JobNews failed("bert");
  failed.Take(
      Status("over", 20, R"("latest":"run1-step10","error":"run1-step20: full")"));
  EXPECT_EQ(FailureOf(failed.Ended()), Failure::kStateUnusable);
  EXPECT_THAT(std::string(failed.Ended().message()),
              HasSubstr("run1-step20: full; the last checkpoint is run1-step10"));
  JobNews lost("bert");
  lost.Take(Status("saving", 20, ""));
  lost.Take(Status("failed", 20, ""));
  EXPECT_THAT(std::string(lost.Ended().message()), HasSubstr("server 1 is lost"));
  JobNews silent("bert");
  EXPECT_TRUE(silent.Unknown(absl::UnavailableError("no answer")).ok());
  silent.Take(Status("saving", 20, ""));
  EXPECT_EQ(FailureOf(silent.Unknown(absl::UnavailableError("no answer"))),
            Failure::kStateUnusable);
}

}  // namespace
}  // namespace syncline
