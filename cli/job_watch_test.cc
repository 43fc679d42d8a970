#include "cli/job_watch.h"

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "comm/base/failure.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Returns a status with job "bert" and another job.
std::string Status(const std::string& phase, uint64_t step, const std::string& saved) {
  return absl::StrCat(R"({"jobs":[{"name":"other","phase":"failed","step":9},)",
                      R"({"name":"bert","phase":")", phase, R"(","step":)", step,
                      R"(,"reason":"server 1 is lost","checkpoint":{)", saved, "}}]}");
}

absl::Status EndOf(const JobNews& news) {
  return news.End(absl::ZeroDuration()).value_or(absl::CancelledError("not at its end"));
}

// Returns the news for a launcher of ranks 0 and 1.
JobNews NewsOfTwo() {
  return JobNews({.name = "bert", .ranks = {0, 1}, .goodbyes_within = absl::Seconds(10)});
}

std::string WithMembers(const std::string& phase, const std::vector<int>& ranks) {
  const auto member = [](std::string* out, int rank) {
    absl::StrAppend(out, R"({"rank":)", rank, "}");
  };
  return absl::StrCat(R"({"jobs":[{"name":"bert","step":20,"phase":")", phase,
                      R"(","checkpoint":{"latest":"run1-step10"},"members":[)",
                      absl::StrJoin(ranks, ",", member), "]}]}");
}

TEST(JobNews, SaysOnceWithWhatAJobBeganAndWhatFailed) {
  JobNews news({.name = "bert"});
  EXPECT_THAT(news.Take("no status"), IsEmpty());
  EXPECT_THAT(news.Take(R"({"jobs":[]})"), IsEmpty());
  EXPECT_FALSE(news.is_known());
  const std::string began = R"("resumed_from":"run1-step500")";
  EXPECT_THAT(news.Take(Status("running", 500, began)),
              ElementsAre("job bert goes on from checkpoint run1-step500"));
  EXPECT_THAT(news.Take(Status("running", 501, began)), IsEmpty());
  const std::string failed = began + R"(,"failed":1,"error":"run2-step600: disk full")";
  EXPECT_THAT(news.Take(Status("running", 600, failed)),
              ElementsAre("a checkpoint of job bert failed, earlier ones are kept: "
                          "run2-step600: disk full"));
  EXPECT_THAT(news.Take(Status("running", 601, failed)), IsEmpty());
  news.Take(Status("over", 700, failed));
  EXPECT_TRUE(EndOf(news).ok()) << "that was not its last step";
}

TEST(JobNews, SaysAtTheEndHowManyCheckpointsFailed) {
  JobNews news({.name = "bert"});
  news.Take(Status("running", 12, R"("latest":"run1-step10")"));
  EXPECT_EQ(news.Closing(), std::nullopt);
  const std::string failed =
      R"("latest":"run1-step10","failed":2,"error":"run1-step20: disk full")";
  news.Take(Status("over", 20, failed));
  EXPECT_EQ(news.Closing(),
            "the last checkpoint of job bert is run1-step10, of step 10 of "
            "20: 2 failed, the last one run1-step20: disk full");
  news.Take(Status("over", 20, R"("latest":"run1-step20","failed":2,"error":"x")"));
  EXPECT_EQ(news.Closing(), std::nullopt) << "its last step is saved";
}

TEST(JobNews, SaysOnceThatAJournalHasEnded) {
  const auto status = [](const std::string& why) {
    return absl::StrCat(
        R"({"jobs":[{"name":"bert","phase":"running","step":9,"records":[)",
        R"({"server":0,"error":""},{"server":3,"error":")", why, R"("}]}]})");
  };
  JobNews news({.name = "bert"});
  EXPECT_THAT(news.Take(status("")), IsEmpty());
  EXPECT_THAT(
      news.Take(status("disk full")),
      ElementsAre("the journal of job bert on server 3 has ended, the job goes on "
                  "without it: disk full"));
  EXPECT_THAT(news.Take(status("disk full")), IsEmpty());
}

// The launcher does not know the job name that the program chose.
TEST(RunNews, AreOfAllJobsOfTheRun) {
  const auto status = [](const std::string& run, uint64_t failed) {
    return absl::StrCat(R"({"jobs":[{"name":"A","phase":"over","step":60,"run_id":")",
                        run, R"(","checkpoint":{"latest":"run1-step10","failed":)",
                        failed, R"(,"error":"run1-step60: disk full"}}]})");
  };
  RunNews news({.name = "default"}, "mine");
  EXPECT_THAT(news.Take(status("other", 1)), IsEmpty());
  EXPECT_FALSE(news.is_known());
  EXPECT_THAT(
      news.Take(status("mine", 1)),
      ElementsAre("a checkpoint of job A failed, earlier ones are kept: run1-step60: "
                  "disk full"));
  EXPECT_TRUE(news.is_known());
  EXPECT_EQ(news.LastCheckpoint(), "run1-step10");
  EXPECT_THAT(news.Closing(), ElementsAre(HasSubstr("of step 10 of 60: 1 failed")));
  const auto end = news.End(absl::ZeroDuration());
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(FailureOf(*end), Failure::kStateUnusable);
}

TEST(JobNews, SaysNothingOfAnotherRunThatIsAtItsEnd) {
  const auto numbered = [](int number, const std::string& phase) {
    return absl::StrCat(R"({"jobs":[{"name":"bert","step":20,"job":)", number,
                        R"(,"phase":")", phase,
                        R"(","checkpoint":{"latest":"run1-step20"}}]})");
  };
  JobNews news({.name = "bert"});
  news.Skip(numbered(3, "saving"));
  EXPECT_THAT(news.Take(numbered(3, "saving")), IsEmpty());
  EXPECT_THAT(news.Take(numbered(3, "over")), IsEmpty());
  EXPECT_FALSE(news.is_known());
  EXPECT_THAT(news.Take(numbered(4, "over")), SizeIs(1));
}

TEST(JobNews, SaysThatTheLastStepIsSaved) {
  JobNews news({.name = "bert"});
  EXPECT_THAT(news.Take(Status("saving", 20, R"("latest":"run1-step10")")),
              ElementsAre(HasSubstr("saving the last step of job bert, for at most")));
  EXPECT_THAT(
      news.Take(Status("over", 20, R"("latest":"run1-step20","bytes":2000000)")),
      ElementsAre(HasSubstr("job bert is saved: checkpoint run1-step20, 2.0 MB")));
  EXPECT_TRUE(EndOf(news).ok());
}

// The coordinator does not know its checkpoint any more, but nothing was lost.
TEST(JobNews, AJobThatIsKnownByItsEndAloneSaysNothing) {
  JobNews news({.name = "bert"});
  news.Take(Status("saving", 20, R"("latest":"run1-step10")"));
  EXPECT_THAT(news.Take(R"({"jobs": [{"name": "bert", "phase": "over", "step": 20,
                                      "ended": {"phase": "over", "step": 20}}]})"),
              testing::IsEmpty());
}

TEST(JobNews, AnEndWithoutTheLastStepIsAFailureWithAnExitCode) {
  JobNews failed({.name = "bert"});
  failed.Take(
      Status("over", 20, R"("latest":"run1-step10","error":"run1-step20: full")"));
  EXPECT_EQ(FailureOf(EndOf(failed)), Failure::kStateUnusable);
  EXPECT_THAT(std::string(EndOf(failed).message()),
              HasSubstr("run1-step20: full; the last checkpoint is run1-step10"));
  JobNews lost({.name = "bert"});
  lost.Take(Status("saving", 20, ""));
  lost.Take(Status("failed", 20, ""));
  EXPECT_THAT(std::string(EndOf(lost).message()), HasSubstr("server 1 is lost"));
  JobNews silent({.name = "bert"});
  EXPECT_TRUE(silent.Unknown(absl::UnavailableError("no answer")).ok());
  silent.Take(Status("saving", 20, ""));
  EXPECT_EQ(FailureOf(silent.Unknown(absl::UnavailableError("no answer"))),
            Failure::kStateUnusable);
}

// Workers have gone before the coordinator has processed their goodbyes.
TEST(JobNews, AJobIsNotAtItsEndBeforeTheGoodbyesAreTakenAndItIsSaved) {
  JobNews news = NewsOfTwo();
  const absl::Duration at_once = absl::Milliseconds(100);
  for (const auto& status : {WithMembers("running", {0, 1}), WithMembers("changing", {1}),
                             WithMembers("changing", {}), WithMembers("saving", {})}) {
    news.Take(status);
    EXPECT_EQ(news.End(at_once), std::nullopt) << status;
  }
  EXPECT_EQ(news.End(absl::Minutes(29)), std::nullopt)
      << "that takes as long as it takes";
  news.Take(Status("over", 20, R"("latest":"run1-step20")"));
  EXPECT_EQ(news.End(at_once), absl::OkStatus());
}

TEST(JobNews, AJobThatOthersTrainOnIsNotAwaited) {
  JobNews news = NewsOfTwo();
  news.Take(WithMembers("running", {1, 2, 3}));
  EXPECT_EQ(news.End(absl::ZeroDuration()), std::nullopt);
  news.Take(WithMembers("changing", {2, 3}));
  EXPECT_EQ(news.End(absl::ZeroDuration()), absl::OkStatus());
  news.Take(R"({"jobs":[]})");
  EXPECT_EQ(news.End(absl::ZeroDuration()), absl::OkStatus()) << "no such job";
}

TEST(JobNews, GoodbyesThatDoNotComeAreAFailureWhereTheJobMayBeSaved) {
  JobNews news = NewsOfTwo();
  news.Take(WithMembers("running", {1}));
  EXPECT_EQ(news.End(absl::Seconds(9)), std::nullopt);
  const auto end = news.End(absl::Seconds(10));
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(FailureOf(*end), Failure::kStateUnusable);
  EXPECT_THAT(std::string(end->message()),
              HasSubstr("whether the last step of job 'bert' is saved is not known"));
  const std::string unsaved =
      R"({"jobs":[{"name":"bert","step":20,"phase":"running","members":[]}]})";
  JobNews without = NewsOfTwo();
  without.Take(unsaved);
  EXPECT_EQ(without.End(absl::Seconds(10)), absl::OkStatus()) << "nobody wants it saved";
  JobNews scheduled({.name = "bert", .is_scheduled = true});
  scheduled.Take(unsaved);
  EXPECT_EQ(FailureOf(*scheduled.End(absl::Seconds(10))), Failure::kStateUnusable);
}

// Servers were late with an earlier checkpoint, and were not asked for the last one.
TEST(JobNews, AnErrorOfAnEarlierCheckpointDoesNotHideThatTheLastIsMissing) {
  JobNews news({.name = "bert"});
  news.Take(Status("saving", 1000, ""));
  news.Take(Status("over", 1000,
                   R"("latest":"run1-step800","error":"run1-step900: it is late")"));
  EXPECT_EQ(FailureOf(EndOf(news)), Failure::kStateUnusable);
  EXPECT_THAT(std::string(EndOf(news).message()),
              HasSubstr("run1-step900: it is late; the last checkpoint is run1-step800"));
  JobNews resumed({.name = "bert"});
  resumed.Take(Status("saving", 1000, R"("resumed_from":"run1-step1000")"));
  resumed.Take(Status("over", 1000, R"("resumed_from":"run1-step1000")"));
  EXPECT_TRUE(EndOf(resumed).ok()) << "it had nothing to do";
}

}  // namespace
}  // namespace syncline
