#include "cli/link_report.h"

#include <algorithm>
#include <fstream>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace syncline {
namespace {

using Json = nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const Timeouts kTimes = Timeouts::Derive(absl::Seconds(10));

// Returns a status without any problem.
Json Sample() {
  return Json::parse(R"({
    "servers": [{"server": 0, "name": "a:17", "heartbeat_age_seconds": 0.9},
                {"server": 1, "name": "b:18", "heartbeat_age_seconds": 0.1}],
    "jobs": [{"name": "old", "phase": "failed", "reason": "it is over"},
             {"name": "bert", "phase": "running", "reason": "worker 1 joins", "step": 120,
              "expected_workers": 2,
              "members": [{"rank": 0, "name": "c:1", "heartbeat_age_seconds": 0.2},
                          {"rank": 1, "name": "d:2", "heartbeat_age_seconds": 0.3}]}]})");
}

LinkProbes Answers() {
  LinkProbes probes{.control = {"10.0.0.1:7070", absl::Milliseconds(1)}};
  probes.admin = LinkProbe{"10.0.0.1:7071", absl::Milliseconds(2)};
  probes.others = {{"10.0.0.2:41", absl::Milliseconds(3)}};
  return probes;
}

WorkerFigures Worker(uint32_t rank, double computes, double waits) {
  WorkerFigures worker{.rank = rank, .phases = {.steps = 1}};
  worker.phases[WorkerPhase::kCompute] = computes;
  worker.phases[WorkerPhase::kOthers] = waits;
  return worker;
}

ServerFigures Server(uint32_t server, double works) {
  ServerFigures figures{.server = server, .phases = {.steps = 1}};
  figures.phases[ServerPhase::kStep] = works;
  return figures;
}

// Returns the reports about problems.
std::vector<LinkReport> Bad(std::vector<LinkReport> reports) {
  std::erase_if(reports, [](const LinkReport& report) {
    return report.result == Check::kOk || report.result == Check::kNone;
  });
  return reports;
}

std::vector<LinkReport> JudgeBad(const Json& status, const LinkProbes& probes = Answers(),
                                 const FiguresOfJobs& figures = {}) {
  return Bad(JudgeLinks(status, probes, figures, kTimes));
}

TEST(LinkReports, LookAtEveryRoleOnceAndFindNothingWrong) {
  const auto reports = JudgeLinks(Sample(), Answers(), {}, kTimes);
  std::vector<std::string> links;
  for (const LinkReport& report : reports) {
    EXPECT_EQ(report.result, Check::kOk) << report.what;
    links.push_back(absl::StrCat(report.check, " ", report.from, ">", report.to));
  }
  EXPECT_THAT(links, testing::ElementsAre(
                         "control here>coordinator 10.0.0.1:7070",
                         "admin here>admin port 10.0.0.1:7071", "port here>10.0.0.2:41",
                         "heartbeat server 0 (a:17)>coordinator",
                         "heartbeat server 1 (b:18)>coordinator", "progress job bert>",
                         "heartbeat worker 0 (c:1) of job bert>coordinator",
                         "heartbeat worker 1 (d:2) of job bert>coordinator"));
  EXPECT_EQ(WorstOf(reports), Check::kOk);
}

// The limits are 0.2 F and 0.4 F.
TEST(LinkReports, NameWhoIsLateAndWhoIsSilent) {
  for (const auto& [age, result] : std::map<double, Check::Result>{{2.0, Check::kOk},
                                                                   {2.1, Check::kWarn},
                                                                   {4.0, Check::kWarn},
                                                                   {4.1, Check::kFail}}) {
    Json status = Sample();
    status["jobs"][1]["members"][1]["heartbeat_age_seconds"] = age;
    const auto bad = JudgeBad(status);
    ASSERT_EQ(bad.size(), result == Check::kOk ? 0u : 1u) << age;
    if (bad.empty()) continue;
    EXPECT_EQ(bad[0].result, result) << age;
    EXPECT_EQ(bad[0].role, "worker");
    EXPECT_EQ(bad[0].number, 1u);
    EXPECT_EQ(bad[0].job, "bert");
    EXPECT_THAT(bad[0].what, HasSubstr("drops it after 6.0 s"));
    EXPECT_NE(bad[0].change, "");
  }
}

TEST(LinkReports, NameTheServerThatIsSilentOrLost) {
  Json status = Sample();
  status["servers"][1]["heartbeat_age_seconds"] = 5;
  auto bad = JudgeBad(status);
  ASSERT_EQ(bad.size(), 1u);
  EXPECT_EQ(bad[0].result, Check::kFail);
  EXPECT_EQ(bad[0].number, 1u);
  EXPECT_EQ(bad[0].from, "server 1 (b:18)");
  EXPECT_THAT(bad[0].what, HasSubstr("silent: no heartbeat for 5.0 s"));

  status = Sample();
  status["servers"][0]["lost_seconds"] = 1.5;
  bad = JudgeBad(status);
  ASSERT_EQ(bad.size(), 1u);
  EXPECT_EQ(bad[0].number, 0u);
  EXPECT_THAT(bad[0].what, HasSubstr("broke 1.5 s ago"));
}

TEST(LinkReports, NameThePortsThatAreNotReachedFromHere) {
  LinkProbes probes = Answers();
  probes.others[0].took = absl::UnavailableError("nothing listens there");
  probes.admin->took = absl::UnavailableError("nothing answers there");
  const auto bad = JudgeBad(Sample(), probes);
  ASSERT_EQ(bad.size(), 2u);
  EXPECT_EQ(bad[0].check, "admin");
  EXPECT_EQ(bad[0].result, Check::kFail);
  EXPECT_EQ(bad[1].check, "port");
  EXPECT_EQ(bad[1].to, "10.0.0.2:41");
  EXPECT_THAT(bad[1].what, HasSubstr("nothing listens there"));
}

// A guessed port may be wrong, since the admin port may be elsewhere. Only a named one
// must answer.
TEST(LinkReports, DoNotMissAnAdminPortThatWasGuessed) {
  LinkProbes probes = Answers();
  probes.admin_is_guessed = true;
  probes.admin->took = absl::UnavailableError("nothing listens there");
  EXPECT_TRUE(JudgeBad(Sample(), probes).empty());
  EXPECT_EQ(JudgeLinks(Sample(), probes, {}, kTimes)[1].result, Check::kNone);
}

TEST(LinkReports, FindSlowAnswersBesideOneHeartbeat) {
  LinkProbes probes = Answers();
  probes.control.took = absl::Milliseconds(999);
  EXPECT_TRUE(JudgeBad(Sample(), probes).empty());
  probes.control.took = absl::Milliseconds(1001);
  const auto bad = JudgeBad(Sample(), probes);
  ASSERT_EQ(bad.size(), 1u);
  EXPECT_EQ(bad[0].check, "control");
  EXPECT_EQ(bad[0].result, Check::kWarn);
}

TEST(LinkReports, SayWhyAJobDoesNotGoOn) {
  Json status = Sample();
  status["jobs"][1]["phase"] = "waiting";
  status["jobs"][1]["reason"] = "rank 1 is awaited";
  auto bad = JudgeBad(status);
  ASSERT_EQ(bad.size(), 1u);
  EXPECT_EQ(bad[0].result, Check::kFail);
  EXPECT_THAT(bad[0].what, HasSubstr("rank 1 is awaited"));

  status["jobs"][1]["phase"] = "running";
  status["jobs"][1]["reason"] = "held up: rank 1 owes step 120 in 3 blocks to server 0";
  bad = JudgeBad(status);
  ASSERT_EQ(bad.size(), 1u);
  EXPECT_THAT(bad[0].what, HasSubstr("stands still at step 120; held up: rank 1 owes"));

  status = Sample();
  status["jobs"][1]["members"].erase(0);
  bad = JudgeBad(status);
  ASSERT_EQ(bad.size(), 1u);
  EXPECT_EQ(bad[0].result, Check::kWarn);
  EXPECT_THAT(bad[0].what, HasSubstr("1 of 2 workers"));

  status["jobs"][1]["members"].clear();
  bad = JudgeBad(status);
  ASSERT_EQ(bad.size(), 1u);
  EXPECT_EQ(bad[0].result, Check::kFail);
  EXPECT_THAT(bad[0].what, HasSubstr("no worker is left"));
}

TEST(LinkReports, NameTheStragglerAndTheSlowServer) {
  FiguresOfJobs figures;
  figures["bert"] =
      JobFigures{.workers = {Worker(0, 0.025, 0.076), Worker(1, 0.1, 0.001)},
                 .servers = {Server(0, 0.01), Server(1, 0.04)}};
  const auto reports = JudgeLinks(Sample(), Answers(), figures, kTimes);
  const auto bad = Bad(reports);
  ASSERT_EQ(bad.size(), 2u);
  EXPECT_EQ(bad[0].check, "own_time");
  EXPECT_EQ(bad[0].number, 1u);
  EXPECT_EQ(bad[0].from, "worker 1 (d:2) of job bert");
  EXPECT_EQ(bad[0].seconds, 0.1);
  EXPECT_EQ(bad[1].check, "server_time");
  EXPECT_EQ(bad[1].number, 1u);
  EXPECT_THAT(bad[1].what,
              HasSubstr("works 40 ms for a step, and no other more than 10 ms"));
  EXPECT_EQ(WorstOf(reports), Check::kWarn);

  // Less than twice the next one; and more than twice, but too little to matter.
  for (const auto& [next, longest] : {std::pair(0.02, 0.038), std::pair(0.001, 0.005)}) {
    figures["bert"] =
        JobFigures{.workers = {Worker(0, 0.1, 0.001), Worker(1, 0.1, 0.001)},
                   .servers = {Server(0, next), Server(1, longest)}};
    EXPECT_TRUE(JudgeBad(Sample(), Answers(), figures).empty()) << longest;
  }
}

TEST(LinkReports, SayWhenItIsNotKnownWhoIsSlow) {
  FiguresOfJobs figures;
  figures["bert"] = absl::FailedPreconditionError("job 'bert' made no step on worker 1");
  const auto reports = JudgeLinks(Sample(), Answers(), figures, kTimes);
  EXPECT_EQ(reports.back().result, Check::kNone);
  EXPECT_THAT(reports.back().what, HasSubstr("made no step on worker 1"));
  EXPECT_EQ(WorstOf(reports), Check::kOk);
}

std::vector<std::string> Lines(const std::vector<LinkReport>& reports) {
  return absl::StrSplit(ReportsAsText(reports), '\n', absl::SkipEmpty());
}

TEST(LinkReportsAsText, FitsAScreenWhateverIsWrong) {
  Json status = Sample();
  const std::string job = "bert-" + std::string(150, 'x');
  status["jobs"][1]["name"] = job;
  status["jobs"][1]["reason"] =
      "held up: rank 1 owes step 120, \xc3\xa4\xc3\xb6 \x1b[31m";
  status["servers"][0]["heartbeat_age_seconds"] = 5;
  status["jobs"][1]["members"][0]["heartbeat_age_seconds"] = 5;
  const auto lines = Lines(JudgeLinks(status, Answers(), {}, kTimes));
  size_t names = 0;
  for (const std::string& line : lines) {
    const auto width =
        std::ranges::count_if(line, [](char c) { return (c & 0xc0) != 0x80; });
    // Names stay whole on their own line, so that they can be copied.
    const bool is_name =
        line.starts_with("      " + job) && line.find(' ', 6) == std::string::npos;
    names += is_name ? 1 : 0;
    EXPECT_TRUE(width <= 80 || is_name) << line;
    EXPECT_EQ(line.find('\x1b'), std::string::npos);
  }
  EXPECT_GE(names, 2u);
  EXPECT_THAT(lines.back(), HasSubstr("not healthy: 5 ok, 0 warn, 3 fail, 0 not tried"));
}

TEST(LinkReportsAsText, SumsUpManyThatAreFineAndNamesTheOneThatIsNot) {
  Json status = Sample();
  Json& members = status["jobs"][1]["members"];
  members.clear();
  for (int rank = 0; rank < 200; ++rank) {
    members.push_back({{"rank", rank},
                       {"name", absl::StrCat("h:", rank)},
                       {"heartbeat_age_seconds", rank == 77 ? 4.5 : 0.25 + rank % 2}});
  }
  status["jobs"][1]["expected_workers"] = 200;
  const auto reports = JudgeLinks(status, Answers(), {}, kTimes);
  const std::string text = ReportsAsText(reports);
  EXPECT_THAT(text,
              AllOf(HasSubstr("199 workers of job bert -> coordinator: heartbeats 250 "
                              "ms to 1.2 s"),
                    HasSubstr("fail  worker 77 (h:77) of job bert -> coordinator"),
                    Not(HasSubstr("worker 76"))));
  EXPECT_EQ(Json::parse(ReportsAsJson("a:1", reports))["links"].size(), reports.size());
}

TEST(LinkReportsAsText, OfACoordinatorThatDoesNotAnswerSaysWhy) {
  const auto reports = JudgeLinks(
      {.control = {"10.0.0.1:7070", absl::UnavailableError("nothing listens there")}},
      kTimes);
  EXPECT_EQ(
      ReportsAsText(reports),
      "fail  here -> coordinator 10.0.0.1:7070: not reached: nothing listens there\n"
      "not healthy: 0 ok, 0 warn, 1 fail, 0 not tried\n");
}

TEST(LinkReportsAsJson, IsAsItsSchemaSays) {
  std::ifstream file(DIAGNOSE_SCHEMA);
  const Json schema = Json::parse(file, nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(schema.is_object()) << DIAGNOSE_SCHEMA;
  const Json& link = schema["properties"]["links"]["items"];
  const auto names = [](const Json& list) { return list.get<std::set<std::string>>(); };
  const auto keys = [](const Json& object) {
    std::set<std::string> all;
    for (const auto& [key, value] : object.items()) all.insert(key);
    return all;
  };
  FiguresOfJobs figures;
  figures["bert"] =
      JobFigures{.workers = {Worker(0, 0.025, 0.076), Worker(1, 0.1, 0.001)},
                 .servers = {Server(0, 0.01), Server(1, 0.04)}};
  const Json shown =
      Json::parse(ReportsAsJson("a:1", JudgeLinks(Sample(), Answers(), figures, kTimes)));
  EXPECT_EQ(keys(shown), names(schema["required"]));
  std::set<std::string> checks;
  for (const Json& one : shown["links"]) {
    EXPECT_EQ(keys(one), names(link["required"]));
    for (const char* word : {"result", "check", "role"}) {
      EXPECT_TRUE(names(link["properties"][word]["enum"]).contains(one[word])) << one;
    }
    checks.insert(one["check"]);
  }
  EXPECT_EQ(checks, names(link["properties"]["check"]["enum"]));
  EXPECT_EQ(keys(link["properties"]), names(link["required"]));
}

}  // namespace
}  // namespace syncline
