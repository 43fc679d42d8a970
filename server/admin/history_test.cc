#include "server/admin/history.h"

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace syncline {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;

const absl::Time kStart = absl::FromUnixSeconds(1000);

JobView Running(uint64_t step, std::vector<MemberView> members) {
  return {.job = 1,
          .name = "bert",
          .phase = JobPhase::kRunning,
          .epoch = 1,
          .step = step,
          .members = std::move(members)};
}

json Points(const History& history) {
  return json::parse(history.FiguresJson(History::Span::kAll))["jobs"][0]["points"];
}

TEST(History, KeepsFiguresInOrder) {
  History history;
  JobView job =
      Running(7, {{.rank = 0, .bytes = 100, .samples = 64}, {.rank = 1, .bytes = 50}});
  job.loss = 0.5;
  history.Add({.jobs = {job}}, kStart);
  job.step = 9;
  job.loss.reset();
  job.members[0].bytes = 160;
  job.members[0].samples = 96;
  job.members[1].samples = 8;
  history.Add({.jobs = {job}}, kStart + absl::Milliseconds(1500));
  const json points = Points(history);
  EXPECT_EQ(points[0], (json{{"time", 1000.0},
                             {"step", 7},
                             {"loss", 0.5},
                             {"bytes", 150},
                             {"samples", 64}}));
  EXPECT_EQ(points[1], (json{{"time", 1001.5},
                             {"step", 9},
                             {"loss", nullptr},
                             {"bytes", 210},
                             {"samples", 104}}));
}

TEST(History, HasOwnTimesOfWorkersForThoseWhoAskForAll) {
  History history;
  MemberView member = {
      .rank = 3, .incarnation = 2, .phases = {.steps = 1, .seconds = {1}}};
  history.Add({.jobs = {Running(1, {member})}}, kStart);
  member.phases = {.steps = 3, .seconds = {1.5}};
  history.Add({.jobs = {Running(3, {member})}}, kStart + absl::Seconds(1));
  const json all = json::parse(history.FiguresJson(History::Span::kAll));
  EXPECT_EQ(all["jobs"][0]["workers"], (json{{{"rank", 3},
                                              {"incarnation", 2},
                                              {"steps", 3},
                                              {"seconds", 1.5},
                                              {"points", {0.25}}}}));
  const json latest = json::parse(history.FiguresJson(History::Span::kLatest));
  EXPECT_FALSE(latest["jobs"][0].contains("workers"));
}

TEST(History, BytesGrowAlthoughMembersGoAndComeBack) {
  History history;
  history.Add(
      {.jobs = {Running(1, {{.rank = 0, .bytes = 100}, {.rank = 1, .bytes = 60}})}},
      kStart);
  history.Add({.jobs = {Running(2, {{.rank = 0, .bytes = 110}})}}, kStart);
  history.Add({.jobs = {Running(3, {{.rank = 0, .bytes = 110},
                                    {.rank = 1, .incarnation = 2, .bytes = 5}})}},
              kStart);
  EXPECT_EQ(Points(history)[2]["bytes"], 175);
}

TEST(History, ThinsOutWhatIsOldAndForgetsWhatIsOlder) {
  History history({.fine_points = 4, .coarse_points = 2, .coarse = 3});
  for (uint64_t step = 0; step < 14; ++step) {
    history.Add({.jobs = {Running(step, {})}}, kStart + absl::Seconds(step));
  }
  std::vector<uint64_t> steps;
  for (const json& point : Points(history)) steps.push_back(point["step"]);
  // Point 0 was dropped. Points 3, 6 and 9 are kept of those that are no longer among the
  // last two.
  EXPECT_THAT(steps, ElementsAre(6, 9, 10, 11, 12, 13));
}

TEST(History, TheLatestPointsAreTheLastOfAll) {
  History history;
  for (uint64_t step = 0; step < 130; ++step) {
    history.Add({.jobs = {Running(step, {})}}, kStart + absl::Seconds(step));
    const json latest = json::parse(history.FiguresJson(History::Span::kLatest));
    const json points = latest["jobs"][0]["points"];
    EXPECT_EQ(points.size(), std::min<uint64_t>(step + 1, 5));
    EXPECT_EQ(points.back()["step"], step);
  }
}

TEST(History, AWorkerThatJustCameDoesNotTakeTheJobBack) {
  History history;
  history.Add({.jobs = {Running(50, {{.rank = 0, .step = 50}})}}, kStart);
  history.Add({.jobs = {Running(0, {{.rank = 0, .step = 51}, {.rank = 1, .step = 0}})}},
              kStart);
  EXPECT_EQ(Points(history)[1]["step"], 50);
}

TEST(History, AJobThatIsOverGetsNoMorePoints) {
  History history;
  history.Add({.jobs = {Running(1, {{.rank = 0, .name = "h:1"}})}}, kStart);
  JobView over = Running(9, {});
  over.phase = JobPhase::kFailed;
  history.Add({.jobs = {over}}, kStart);
  history.Add({.jobs = {over}}, kStart);
  EXPECT_EQ(Points(history).size(), 2);
  EXPECT_EQ(Points(history)[1]["step"], 9) << "where it ended";
}

JobView Numbered(uint32_t number, uint64_t step) {
  JobView job = Running(step, {{.rank = 0, .name = "h:1"}});
  job.job = number;
  return job;
}

std::vector<uint32_t> Jobs(const History& history) {
  std::vector<uint32_t> numbers;
  const json parsed = json::parse(history.FiguresJson(History::Span::kAll));
  for (const json& job : parsed["jobs"]) numbers.push_back(job["job"]);
  return numbers;
}

TEST(History, TheJobThatEndedFirstGoesForANewOne) {
  History history({.jobs = 2});
  JobView over = Numbered(2, 1);
  over.phase = JobPhase::kOver;
  history.Add({.jobs = {Numbered(1, 1), Numbered(2, 1)}}, kStart);
  history.Add({.jobs = {Numbered(1, 2), over}}, kStart);
  history.Add({.jobs = {Numbered(1, 3), over, Numbered(3, 1)}}, kStart);
  EXPECT_THAT(Jobs(history), ElementsAre(1, 3));
}

TEST(History, JobsThatLiveKeepTheirHistoryAlthoughTooManyCome) {
  History history({.jobs = 2});
  for (uint64_t step = 1; step <= 3; ++step) {
    history.Add({.jobs = {Numbered(1, step), Numbered(2, step), Numbered(3, step)}},
                kStart + absl::Seconds(step));
  }
  EXPECT_THAT(Jobs(history), ElementsAre(1, 2));
  EXPECT_EQ(Points(history).size(), 3);
}

TEST(History, TakesNamesThatAreNoUtf8AndLossesThatAreNoNumber) {
  History history;
  JobView job = Running(1, {{.rank = 0, .name = "\xff"}});
  job.name = "a\xff";
  job.loss = std::numeric_limits<double>::quiet_NaN();
  history.Add({.jobs = {job}}, kStart);
  EXPECT_EQ(json::parse(history.FiguresJson(History::Span::kAll))["jobs"][0]["name"],
            "a\uFFFD");
  EXPECT_EQ(Points(history)[0]["loss"], nullptr);
}

TEST(History, IsEmptyAtFirst) {
  EXPECT_EQ(History().FiguresJson(History::Span::kAll), R"({"jobs":[]})");
}

}  // namespace
}  // namespace syncline
