#include "server/admin/advisor.h"

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace syncline {
namespace {

using ::testing::HasSubstr;

struct Seen {
  uint64_t steps = 0;
  uint32_t job = 1;
  uint32_t incarnation = 1;
  std::string phase = "running";
  std::string mode = "bsp";
};

// Worker 0 waits for 30 ms of each step for worker 1, which computes 40.
std::string Status(const Seen& seen) {
  const auto member = [&](int rank, double compute, double others) {
    return absl::StrCat(
        R"({"rank":)", rank, R"(,"incarnation":)", seen.incarnation, R"(,"bytes":)",
        1000 * seen.steps, R"(,"compression":{"ratio":2},"phases":{"steps":)", seen.steps,
        R"(,"seconds":{"compute":)", compute * static_cast<double>(seen.steps),
        R"(,"others":)", others * static_cast<double>(seen.steps), "}}}");
  };
  return absl::StrCat(
      R"({"servers":[{"lanes":"TLS"}],"jobs":[{"job":)", seen.job,
      R"(,"name":"bert","phase":")", seen.phase, R"(","mode":")", seen.mode,
      R"(","push_codec":"bf16","publish_codec":"bf16","members":[)",
      member(0, 0.01, 0.03), ",", member(1, 0.04, 0.0),
      R"(],"server_phases":[{"server":3,"steps":)", seen.steps, R"(,"seconds":{"step":)",
      0.002 * static_cast<double>(seen.steps), "}}]}]}");
}

TEST(Advisor, TakesDifferencesOfStatuses) {
  Advisor advisor;
  ASSERT_TRUE(advisor.Add(Status({.steps = 100}), absl::Seconds(1)).ok());
  EXPECT_EQ(advisor.FiguresOf("bert").status().code(),
            absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(advisor.Add(Status({.steps = 140}), absl::Seconds(5)).ok());
  const auto figures = advisor.FiguresOf("bert");
  ASSERT_TRUE(figures.ok()) << figures.status();
  ASSERT_EQ(figures->workers.size(), 2u);
  EXPECT_NEAR(figures->step_seconds(), 0.04, 1e-9);
  EXPECT_NEAR(figures->bytes_per_step, 1000, 1e-9);
  EXPECT_NEAR(figures->compression, 2, 1e-9);
  ASSERT_EQ(figures->servers.size(), 1u);
  EXPECT_EQ(figures->servers[0].server, 3u);
  EXPECT_THAT(AdviceAsText("bert", *figures), HasSubstr("75 %  straggler"));
  const auto all = nlohmann::json::parse(advisor.AllJson());
  EXPECT_EQ(all["jobs"][0]["advice"][0]["bound"], "straggler");
  EXPECT_NEAR(all["jobs"][0]["advice"][0]["gain"].get<double>(), 0.75, 1e-9);
  EXPECT_EQ(all["jobs"][0]["why_not"], "");
}

TEST(Advisor, AskersAtAnyTimesSeeTheStepsOfTheLastSeconds) {
  Advisor advisor;
  for (int i = 0; i <= 1000; ++i) {
    const auto seen = Status({.steps = static_cast<uint64_t>(10 * i)});
    ASSERT_TRUE(advisor.Add(seen, absl::Milliseconds(100 * i)).ok());
    EXPECT_EQ(advisor.FiguresOf("bert").ok(), i > 0);
  }
  Advisor hasty;
  ASSERT_TRUE(hasty.Add(Status({.steps = 100}), absl::Seconds(1)).ok());
  ASSERT_TRUE(hasty.Add(Status({.steps = 140}), absl::Seconds(2)).ok());
  EXPECT_THAT(hasty.AllJson(), HasSubstr("a moment only"));
  const auto all = nlohmann::json::parse(advisor.AllJson());
  EXPECT_GE(all["seconds"].get<double>(), 8);
  EXPECT_LE(all["seconds"].get<double>(), 14);
}

TEST(Advisor, SaysWhyItHasNoAdvice) {
  Advisor advisor;
  EXPECT_FALSE(advisor.Add("no status", absl::ZeroDuration()).ok());
  ASSERT_TRUE(advisor.Add(Status({.steps = 9}), absl::Seconds(0)).ok());
  EXPECT_THAT(std::string(advisor.FiguresOf("bart").status().message()),
              HasSubstr("there is no job 'bart'; did you mean 'bert'?"));
  const auto why = [&](const Seen& seen) {
    EXPECT_TRUE(advisor.Add(Status(seen), absl::Seconds(5)).ok());
    return std::string(advisor.FiguresOf("bert").status().message());
  };
  EXPECT_THAT(why({.steps = 9}), HasSubstr("made no step on worker 0 in 5s"));
  EXPECT_THAT(why({.steps = 19, .incarnation = 2}),
              HasSubstr("made no step on worker 0"));
  EXPECT_THAT(why({.steps = 19, .job = 2}), HasSubstr("made no step on worker 0"));
  EXPECT_THAT(why({.steps = 19, .phase = "waiting"}), HasSubstr("is waiting"));
  EXPECT_THAT(why({.steps = 19, .mode = "asp"}), HasSubstr("no worker of it waits"));
}

}  // namespace
}  // namespace syncline
