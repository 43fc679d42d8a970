#include "server/admin/advisor.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

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

// Returns a status in which worker 1 computes for 40 ms of each step, and worker 0 waits
// for it for 30 ms.
std::string Status(const Seen& seen) {
  const auto member = [&](int rank, double compute, double others) {
    return absl::StrCat(
        R"({"rank":)", rank, R"(,"incarnation":)", seen.incarnation, R"(,"bytes":)",
        1000 * seen.steps,
        R"(,"links":{"sent_bytes_per_second":2e6,"received_bytes_per_second":3e6})",
        R"(,"compression":{"ratio":2},"phases":{"steps":)", seen.steps,
        R"(,"seconds":{"compute":)", compute * static_cast<double>(seen.steps),
        R"(,"others":)", others * static_cast<double>(seen.steps), "}}}");
  };
  return absl::StrCat(
      R"({"servers":[{"lanes":"TLS"}],"jobs":[{"job":)", seen.job,
      R"(,"name":"bert","phase":")", seen.phase, R"(","mode":")", seen.mode,
      R"(","parameters":200,"push_codec":"bf16","publish_codec":"bf16","members":[)",
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
  EXPECT_NEAR(figures->pushed_bytes_per_step, 400, 1e-9) << "200 parameters, halved";
  EXPECT_EQ(figures->workers[0].sent_bytes_per_second, 2e6);
  EXPECT_EQ(figures->workers[1].received_bytes_per_second, 3e6);
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
  EXPECT_THAT(hasty.AllJson(), HasSubstr("not observed for long"));
  const auto all = nlohmann::json::parse(advisor.AllJson());
  EXPECT_GE(all["seconds"].get<double>(), 8);
  EXPECT_LE(all["seconds"].get<double>(), 14);
}

// Workers report sums of whole steps.
struct Step {
  double seconds = 18;
  double since = 0;  // when the worker joined
};
std::string MemberAt(int rank, const Step& step, double now) {
  const double steps = std::floor(std::max(0.0, now - step.since) / step.seconds);
  const double compute = rank == 1 ? step.seconds : step.seconds / 3;
  return absl::StrCat(R"({"rank":)", rank,
                      R"(,"incarnation":1,"bytes":0,"phases":{"steps":)", steps,
                      R"(,"seconds":{"compute":)", steps * compute, R"(,"others":)",
                      steps * (step.seconds - compute), "}}}");
}
std::string StatusOf(const std::string& members) {
  return absl::StrCat(
      R"({"servers":[{"lanes":"TLS"}],"jobs":[{"job":1,"name":"bert","phase":"running",)"
      R"("mode":"bsp","members":[)",
      members, "]}]}");
}

TEST(Advisor, StepsThatTakeLongerThanItsWindowGiveAdviceThatStays) {
  Advisor advisor;
  const Step slow = {.seconds = 18};
  int said = 0;
  for (int now = 5; now <= 200; now += 5) {  // as often as the dashboard asks
    ASSERT_TRUE(advisor
                    .Add(StatusOf(MemberAt(0, slow, now) + "," + MemberAt(1, slow, now)),
                         absl::Seconds(now))
                    .ok());
    const auto all = nlohmann::json::parse(advisor.AllJson());
    const auto& of = all["jobs"][0];
    if (now < 20) continue;  // no step has ended
    ASSERT_EQ(of["why_not"], "") << "after " << now << " s";
    EXPECT_THAT(of["advice"][0]["what"].get<std::string>(),
                HasSubstr("worker 1 computes for 18000 ms"));
    ++said;
  }
  EXPECT_GT(said, 30);
  // The window has several steps, not all that were ever made.
  EXPECT_GE(advisor.FiguresOf("bert")->seconds, 4 * 18 - 5);
  EXPECT_LE(advisor.FiguresOf("bert")->seconds, 6 * 18);
}

TEST(Advisor, AJobThatStandsStillHasNoAdviceAfterSomeSteps) {
  Advisor advisor;
  const Step step = {.seconds = 4};
  const auto look = [&](double at, double now) {
    EXPECT_TRUE(advisor
                    .Add(StatusOf(MemberAt(0, step, at) + "," + MemberAt(1, step, at)),
                         absl::Seconds(now))
                    .ok());
    return advisor.FiguresOf("bert").status();
  };
  for (int now = 0; now <= 40; now += 2) (void)look(now, now);
  EXPECT_TRUE(look(40, 55).ok());
  EXPECT_THAT(std::string(look(40, 58).message()),
              HasSubstr("made no step on any worker in 18s"));
  EXPECT_TRUE(look(58, 59).ok()) << "it goes on";
}

TEST(Advisor, ANewcomerWithoutAStepIsLeftOutAndNamed) {
  Advisor advisor;
  const auto look = [&](int now) {
    const std::string newcomer = MemberAt(2, {.seconds = 18, .since = 40}, now);
    const std::string others =
        MemberAt(0, {.seconds = 2}, now) + "," + MemberAt(1, {.seconds = 2}, now);
    EXPECT_TRUE(advisor
                    .Add(StatusOf(now < 40 ? others : others + "," + newcomer),
                         absl::Seconds(now))
                    .ok());
    return advisor.FiguresOf("bert");
  };
  for (int now = 0; now < 40; now += 5) (void)look(now);
  const auto figures = look(45);
  ASSERT_TRUE(figures.ok()) << figures.status();
  EXPECT_EQ(figures->workers.size(), 2u);
  EXPECT_EQ(figures->without_a_step, std::vector<uint32_t>{2});
  EXPECT_THAT(AdviceAsText("bert", *figures),
              HasSubstr("no recent step, and left out: worker 2\n"));
  const auto all = nlohmann::json::parse(advisor.AllJson());
  EXPECT_EQ(all["jobs"][0]["without_a_step"], nlohmann::json({2}));
  EXPECT_EQ(all["jobs"][0]["advice"][0]["bound"], "straggler");
  for (int now = 50; now < 60; now += 5) (void)look(now);
  EXPECT_TRUE(look(60)->without_a_step.empty());
}

// Makes the status of a job on one host whose workers make a step in 0.1 s. At 20 s worker
// 1 stops, and worker 0 waits for it until epoch 2 begins without it, at 26 s.
constexpr double kStopped = 20, kGivenUp = 26;
std::string StatusWithAStop(double now) {
  const double waited = std::clamp(now - kStopped, 0.0, kGivenUp - kStopped);
  const double steps = std::floor((now - waited) * 10 + 1e-6);
  // The sums of the step in which it waits are reported with the next one.
  const double reported = now < kGivenUp + 0.1 ? 0 : kGivenUp - kStopped;
  const auto member = [&](int rank) {
    return absl::StrCat(R"({"rank":)", rank, R"(,"incarnation":1,"step":)", steps,
                        R"(,"phases":{"steps":)", steps, R"(,"seconds":{"compute":)",
                        0.09 * steps, R"(,"others":)", 0.01 * steps + reported, "}}}");
  };
  const bool is_over = now >= kGivenUp;
  return absl::StrCat(
      R"({"servers":[{"lanes":"shared memory of this host"}],"jobs":[{"job":1,)",
      R"("name":"bert","phase":"running","mode":"bsp","epoch":)", is_over ? 2 : 1,
      R"(,"events":[{"kind":"epoch","step":0})",
      is_over ? R"(,{"kind":"death","step":200},{"kind":"epoch","step":200})" : "",
      R"(],"members":[)", member(0), is_over ? "" : "," + member(1),
      R"(],"server_phases":[{"server":0,"steps":)", steps, R"(,"seconds":{"step":)",
      0.005 * steps, R"(,"decide":)", waited, "}}]}]}");
}

TEST(Advisor, TheWaitForAWorkerThatStoppedIsNeitherTheServersNorADecision) {
  Advisor dashboard;
  for (int now = 0; now <= 60; ++now) {
    ASSERT_TRUE(dashboard.Add(StatusWithAStop(now), absl::Seconds(now)).ok());
    const auto figures = dashboard.FiguresOf("bert");
    if (!figures.ok()) {
      EXPECT_TRUE(now < 3 || (now >= kGivenUp && now < kGivenUp + 3)) << now;
      continue;
    }
    const auto all = Advise(*figures);
    ASSERT_EQ(all.size(), 1u) << AdviceAsText("bert", *figures) << "after " << now;
    EXPECT_EQ(all[0].bound, JobBound::kCompute);
    EXPECT_NEAR(figures->step_seconds(), 0.1, 1e-6) << "after " << now;
  }
}

TEST(Advisor, WhoeverAsksFirstAfterAWorkerWasGivenUpDoesNotSeeThatWaitEither) {
  for (const double first : {kStopped + 5, kGivenUp, kGivenUp + 0.05}) {
    Advisor asked;
    ASSERT_TRUE(asked.Add(StatusWithAStop(first), absl::Seconds(first)).ok());
    const double then = kGivenUp + 4;
    ASSERT_TRUE(asked.Add(StatusWithAStop(then), absl::Seconds(then)).ok());
    EXPECT_THAT(std::string(asked.FiguresOf("bert").status().message()),
                HasSubstr("has epoch 2 for too few steps yet"));
    ASSERT_TRUE(asked.Add(StatusWithAStop(then + 3), absl::Seconds(then + 3)).ok());
    EXPECT_NEAR(asked.FiguresOf("bert")->step_seconds(), 0.1, 1e-6) << first;
  }
}

TEST(Advisor, ASuccessorOfTheSameNameIsLookedAtForItself) {
  Advisor advisor;
  const auto both = [](uint64_t steps) {
    auto one = nlohmann::json::parse(Status({.steps = 500, .phase = "over"}));
    const auto other = nlohmann::json::parse(Status({.steps = steps, .job = 2}));
    one["jobs"].push_back(other["jobs"][0]);
    return one.dump();
  };
  ASSERT_TRUE(advisor.Add(both(10), absl::Seconds(1)).ok());
  ASSERT_TRUE(advisor.Add(both(20), absl::Seconds(6)).ok());
  EXPECT_NEAR(advisor.FiguresOf("bert")->step_seconds(), 0.04, 1e-9);
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
  EXPECT_THAT(why({.steps = 9}), HasSubstr("made no step on any worker in 5s"));
  EXPECT_THAT(why({.steps = 19, .incarnation = 2}), HasSubstr("made no step on any"));
  EXPECT_THAT(why({.steps = 19, .job = 2}), HasSubstr("made no step on any worker"));
  EXPECT_THAT(why({.steps = 19, .phase = "waiting"}), HasSubstr("is waiting"));
  EXPECT_THAT(why({.steps = 19, .mode = "asp"}), HasSubstr("its workers do not wait"));
}

}  // namespace
}  // namespace syncline
