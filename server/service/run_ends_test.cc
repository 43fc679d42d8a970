#include "server/service/run_ends.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::ElementsAre;

const absl::Time kNow = absl::FromUnixSeconds(100'000);

class RunEnds : public testing::Test {
 protected:
  // Adds the end of a job, a while before kNow.
  void Ended(uint32_t job, const std::string& name, const std::string& what,
             absl::Duration ago = absl::Minutes(3)) {
    log_.Add({.job = job,
              .job_name = name,
              .step = 120,
              .kind = EventKind::kEnd,
              .what = what},
             kNow - ago);
  }
  void Exited(uint32_t job, const std::string& name, const std::string& what) {
    log_.Add({.job = job, .job_name = name, .kind = EventKind::kExit, .what = what},
             kNow - absl::Minutes(4));
  }
  v1::JobStatus& Listed(uint32_t job, const std::string& name) {
    v1::JobStatus& listed = *reply_.add_jobs();
    listed.set_job(job);
    listed.set_name(name);
    return listed;
  }
  void Append() {
    log_.Show();
    AppendEnds(log_.Ends(kNow), reply_);
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const v1::JobStatus& job : reply_.jobs()) {
      names.push_back(absl::StrCat(job.name(), " ", job.job()));
    }
    return names;
  }

  EventLog log_;
  v1::StatusReply reply_;
};

TEST_F(RunEnds, TellOfTheRunBefore) {
  Ended(3, "bert", "the job is over: all workers left", absl::Hours(30));
  Exited(5, "bert", "rank 1 died: exit code 3");
  Exited(5, "bert", "rank 1 died: signal 9 (Killed), its launcher stops the run");
  Ended(5, "bert", "the job has failed: no worker was connected for 50s");
  Ended(6, "other", "the job is over: all workers left");
  Listed(8, "bert");
  Append();
  const v1::JobStatus& bert = reply_.jobs(0);
  EXPECT_FALSE(bert.has_ended());
  ASSERT_TRUE(bert.has_before());
  EXPECT_EQ(bert.before().job(), 5u);
  EXPECT_EQ(bert.before().phase(), "failed");
  EXPECT_EQ(bert.before().reason(), "no worker was connected for 50s");
  EXPECT_EQ(bert.before().exit(),
            "rank 1 died: signal 9 (Killed), its launcher stops the run");
  EXPECT_EQ(bert.before().step(), 120u);
  EXPECT_EQ(bert.before().age_seconds(), 180);
}

TEST_F(RunEnds, OfJobsThatAreListedHaveTheirAge) {
  Ended(3, "bert", "the job is over: all workers left");
  Exited(5, "bert", "rank 1 died: exit code 3");  // and was restarted
  Ended(5, "bert", "the job is over: all workers left", -absl::Minutes(1));
  Listed(5, "bert");
  Append();
  ASSERT_TRUE(reply_.jobs(0).has_ended());
  EXPECT_EQ(reply_.jobs(0).ended().phase(), "over");
  EXPECT_EQ(reply_.jobs(0).ended().exit(), "") << "it got over it";
  EXPECT_EQ(reply_.jobs(0).ended().age_seconds(), 0) << "the clock was set back";
  EXPECT_EQ(reply_.jobs(0).before().job(), 3u);
}

// A restarted coordinator does not know these jobs.
TEST_F(RunEnds, ListJobsOfTheLastHourThatNobodyElseLists) {
  Ended(1, "old", "the job is over: all workers left", absl::Minutes(61));
  Ended(2, "bert", "the job is over: all workers left");
  Ended(3, "gpt", "the job has failed: server 0 (a:1) is lost");
  Ended(4, "bert", "all workers left before the job began");
  log_.Add({.job = 5, .job_name = "runs", .kind = EventKind::kJoin}, kNow);
  Listed(6, "again");
  Append();
  EXPECT_THAT(Names(), ElementsAre("again 6", "bert 4", "gpt 3"));
  const v1::JobStatus& bert = reply_.jobs(1);
  EXPECT_EQ(bert.phase(), "over");
  EXPECT_EQ(bert.reason(), "all workers left before the job began");
  EXPECT_EQ(bert.ended().age_seconds(), 180);
  EXPECT_EQ(bert.before().job(), 2u);
  const v1::JobStatus& gpt = reply_.jobs(2);
  EXPECT_EQ(gpt.phase(), "failed");
  EXPECT_EQ(gpt.reason(), "server 0 (a:1) is lost");
  EXPECT_EQ(gpt.step(), 120u);
  EXPECT_FALSE(gpt.has_before());
}

TEST_F(RunEnds, ListAFewOfMany) {
  for (uint32_t job = 1; job <= 40; ++job) {
    Ended(job, absl::StrCat("job", job), "the job is over: all workers left");
  }
  Append();
  ASSERT_EQ(reply_.jobs_size(), 16);
  EXPECT_EQ(reply_.jobs(0).job(), 40u);
  EXPECT_EQ(reply_.jobs(15).job(), 25u);
}

TEST_F(RunEnds, AreThoseThatAreStored) {
  log_.Show();
  Ended(1, "bert", "the job is over: all workers left");
  EXPECT_TRUE(log_.Ends(kNow).empty());
  log_.Show();
  EXPECT_EQ(log_.Ends(kNow).size(), 1u);
}

}  // namespace
}  // namespace syncline
