#include "cli/job_choice.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace syncline {
namespace {

constexpr char kStatus[] = R"({"uptime_seconds": 3, "servers": [{"server": 1}],
    "jobs": [{"job": 1, "name": "bert", "phase": "over"}, {"job": 2, "name": "gpt"},
             {"job": 3, "name": "bert", "phase": "running"}]})";

TEST(JobChoice, LeavesEachRunOfThatNameAndAllServers) {
  const auto chosen = StatusOfJob(kStatus, "bert");
  ASSERT_TRUE(chosen.ok()) << chosen.status();
  const auto status = nlohmann::json::parse(*chosen);
  ASSERT_EQ(status["jobs"].size(), 2u);
  EXPECT_EQ(status["jobs"][0]["job"], 1);
  EXPECT_EQ(status["jobs"][1]["job"], 3);
  EXPECT_EQ(status["servers"].size(), 1u);
}

TEST(JobChoice, ChangesNoByteWhereNoJobIsNamed) {
  EXPECT_EQ(*StatusOfJob(kStatus, ""), kStatus);
}

TEST(JobChoice, NamesTheJobsThatThereAreEachOnce) {
  const absl::Status unknown = StatusOfJob(kStatus, "other").status();
  EXPECT_TRUE(absl::IsNotFound(unknown));
  EXPECT_EQ(unknown.message(), "there is no job 'other'; there are 'bert', 'gpt'");
  EXPECT_FALSE(StatusOfJob("{", "bert").ok());
}

TEST(JobChoice, SaysOfAJobThatNobodyHasJoinedThatItIsStarting) {
  const absl::Status starting = StatusOfJob(kStatus, "new", {"new"}).status();
  EXPECT_TRUE(absl::IsNotFound(starting)) << "who waits for it goes on waiting";
  EXPECT_EQ(starting.message(),
            "job 'new' is starting: none of its workers has joined yet");
  EXPECT_TRUE(StatusOfJob(kStatus, "bert", {"bert"}).ok());
  EXPECT_EQ(NoJobs({}), "no jobs yet");
  EXPECT_EQ(NoJobs({"a", "b"}),
            "job 'a' is starting: none of its workers has joined yet\n"
            "job 'b' is starting: none of its workers has joined yet");
}

}  // namespace
}  // namespace syncline
