#include "cli/top_view.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

std::string Picture(const TopView& view, const TopSize& size = {}) {
  return absl::StrJoin(view.Draw(size), "\n", [](std::string* out, const TopLine& line) {
    out->append(line.text);
  });
}

struct Seen {
  uint32_t rank = 0;
  uint64_t step = 0;
  uint64_t bytes = 0;
  bool waiting = false;
  double heartbeat_age = 0.1;
};

std::string Status(uint64_t step, const std::vector<Seen>& members) {
  const std::string list =
      absl::StrJoin(members, ",", [](std::string* out, const Seen& member) {
        absl::StrAppend(out, R"({"incarnation":1,"name":"host:1)", member.rank,
                        R"(","rank":)", member.rank, R"(,"step":)", member.step,
                        R"(,"bytes":)", member.bytes, R"(,"heartbeat_age_seconds":)",
                        member.heartbeat_age, R"(,"waiting":)",
                        member.waiting ? "true}" : "false}");
      });
  return absl::StrCat(
      R"({"build_version":"0.1.0","uptime_seconds":3725,
          "servers":[{"server":0,"name":"a:17","bytes":0,"heartbeat_age_seconds":0.2,
                      "memory_placed_bytes":1073741824,"lanes":"sysv"}],
          "jobs":[{"job":1,"name":"bert","phase":"running","expected_workers":3,
                   "mode":"ssp:staleness=3","push_codec":"onebit","publish_codec":"bf16","learning_rate":0.01,
                   "loss":0.5,"step":)",
      step, R"(,"members":[)", list, "]}]}");
}

// Rank 0 makes 2 steps per second, and ranks 1 and 2 wait for it.
TopView Straggling() {
  TopView view({.coordinator = "a:7070", .glyphs = TopOptions::Glyphs::kAscii});
  for (uint64_t i = 0; i < 20; ++i) {
    const auto status =
        view.Add(Status(2 * i, {{.rank = 0, .step = 2 * i, .bytes = 1000000 * i},
                                {.rank = 1, .step = 2 * i + 1, .waiting = true},
                                {.rank = 2, .step = 2 * i + 1, .waiting = true}}),
                 absl::Seconds(i));
    EXPECT_TRUE(status.ok()) << status;
  }
  return view;
}

TEST(TopView, ShowsRatesStragglersAndWhatAJobIs) {
  const TopView view = Straggling();
  const std::string picture = Picture(view);
  EXPECT_THAT(picture, HasSubstr("syncline 0.1.0  coordinator a:7070  up 1 h 2 min"));
  EXPECT_THAT(picture, ContainsRegex("0 +a:17 .*1.0 GiB +0.2s +attached"));
  EXPECT_THAT(picture, ContainsRegex("> bert +running +3 of 3 +38 +2.00 +0.5"));
  EXPECT_THAT(
      picture,
      HasSubstr(
          "mode ssp:staleness=3, pushes onebit, publishes bf16; learning rate 0.01"));
  EXPECT_THAT(picture, ContainsRegex("0 host:10 +38 +1 +2.00 +1.0 MB +100% +0.1s"));
  EXPECT_THAT(picture, ContainsRegex("1 host:11 +39 +0 +2.00 +0 B +0% +0.1s"));
  const auto lines = view.Draw({});
  const auto straggler = std::find_if(
      lines.begin(), lines.end(),
      [](const TopLine& line) { return line.tone == TopLine::Tone::kWarning; });
  ASSERT_NE(straggler, lines.end());
  EXPECT_THAT(straggler->text, HasSubstr("host:10"));
}

TEST(TopView, ShowsEventsOfTheJobAndOfServersTheLatestFirst) {
  const auto event = [](int number, const std::string& what) {
    return absl::StrCat(R"({"time":1000.5,"number":)", number,
                        R"(,"kind":"epoch","step":7,"what":")", what, R"("})");
  };
  const std::string status = absl::StrCat(
      R"({"servers":[],"jobs":[{"job":1,"name":"bert","phase":"running","events":[)",
      event(1, "job event 1"), ",", event(2, "job event 2"), R"(]}],"events":[)",
      event(1, "server event"), "]}");
  TopView view({.coordinator = "a:7070", .glyphs = TopOptions::Glyphs::kAscii});
  ASSERT_TRUE(view.Add(status, absl::Seconds(1)).ok());
  EXPECT_THAT(Picture(view), Not(HasSubstr("job event")));
  view.Press(TopKey::kEvents);
  const std::string picture = Picture(view);
  EXPECT_THAT(picture, ContainsRegex("7  epoch +job event 2\n.*7  epoch +job event 1\n"));
  EXPECT_LT(picture.find("job event 1"), picture.find("server event"));
  const std::string low = Picture(view, {.columns = 80, .rows = 11});
  EXPECT_THAT(low, HasSubstr("job event 2"));
  EXPECT_THAT(low, Not(HasSubstr("job event 1")));
  view.Press(TopKey::kEvents);
  EXPECT_THAT(Picture(view), Not(HasSubstr("job event")));
}

TEST(TopView, ShowsHowAJobKeepsToItsGoals) {
  TopView view({.coordinator = "a:7070"});
  std::string status = Status(10, {{.rank = 0, .step = 10}});
  ASSERT_TRUE(view.Add(status, absl::Seconds(1)).ok());
  EXPECT_THAT(Picture(view), Not(HasSubstr("goals:")));
  status.insert(status.rfind("}]}"),
                R"(,"goals":[{"goal":"step_p95_ms","at_least":false,"limit":150,"now":163,
                   "missed":true,"budget_left":0.5}])");
  ASSERT_TRUE(view.Add(status, absl::Seconds(2)).ok());
  EXPECT_THAT(Picture(view),
              HasSubstr("  goals: step_p95_ms<=150 missed, 163 now, budget 50 %"));
  const auto lines = view.Draw({});
  EXPECT_TRUE(std::ranges::any_of(lines, [](const TopLine& line) {
    return line.tone == TopLine::Tone::kWarning &&
           line.text.find("goals:") != std::string::npos;
  }));
}

TEST(TopView, SaysForWhomAJobThatStandsWaits) {
  TopView view = Straggling();
  for (int i = 20; i < 25; ++i) {
    ASSERT_TRUE(view.Add(Status(38, {{.rank = 0, .step = 38},
                                     {.rank = 1, .step = 39, .waiting = true},
                                     {.rank = 2, .step = 39, .waiting = true}}),
                         absl::Seconds(i))
                    .ok());
  }
  EXPECT_THAT(Picture(view), HasSubstr("has waited at step 38 for rank 0 for 5 s"));
}

TEST(TopView, KeepsThePictureWhenTheCoordinatorDoesNotAnswer) {
  TopView view = Straggling();
  view.Fail(absl::UnavailableError("a:7070 does not answer"), absl::Seconds(20));
  view.Fail(absl::UnavailableError("a:7070 does not answer"), absl::Seconds(23));
  EXPECT_THAT(Picture(view), HasSubstr("no answer for 3 s: a:7070 does not answer"));
  EXPECT_THAT(Picture(view), HasSubstr("host:10"));
  ASSERT_FALSE(view.Add("no status", absl::Seconds(24)).ok());
  ASSERT_TRUE(view.Add(Status(40, {}), absl::Seconds(25)).ok());
  EXPECT_THAT(Picture(view), Not(HasSubstr("no answer")));
  EXPECT_THAT(Picture(view), Not(HasSubstr("host:10")));
}

TEST(TopView, ANewLifeOfARankHasNoHistory) {
  TopView view({.coordinator = "a:1"});
  ASSERT_TRUE(view.Add(Status(100, {{.rank = 0, .step = 100}}), absl::Seconds(0)).ok());
  std::string reborn = Status(3, {{.rank = 0, .step = 3}});
  reborn.replace(reborn.find("\"incarnation\":1"), 15, "\"incarnation\":2");
  ASSERT_TRUE(view.Add(reborn, absl::Seconds(1)).ok());
  EXPECT_THAT(Picture(view), ContainsRegex("0 host:10 +3 +0 +0.00"));
}

TEST(TopView, WhatIsLateFollowsFromTheFailureTimeout) {
  const auto warnings = [](const std::string& about_f, double age) {
    std::string status = Status(1, {{.rank = 0, .heartbeat_age = age}});
    status.insert(1, about_f);
    TopView view({.coordinator = "a:1"});
    EXPECT_TRUE(view.Add(status, absl::Seconds(1)).ok());
    const auto lines = view.Draw({});
    return std::ranges::count(lines, TopLine::Tone::kWarning, &TopLine::tone);
  };
  const std::string two_minutes = R"("failure_timeout_seconds":120,)";
  EXPECT_EQ(warnings(two_minutes, 13), 0) << "heartbeats come each 12 s";
  EXPECT_EQ(warnings(two_minutes, 37), 1);
  const std::string one_second = R"("failure_timeout_seconds":1,)";
  EXPECT_EQ(warnings(one_second, 0.25), 0);
  EXPECT_EQ(warnings(one_second, 0.4), 1);
  EXPECT_EQ(warnings("", 2.9), 0) << "an older coordinator";
  EXPECT_EQ(warnings("", 3.1), 1);
}

TEST(TopView, FitsIntoAnyTerminal) {
  std::vector<Seen> members;
  for (uint32_t rank = 0; rank < 64; ++rank) {
    members.push_back(
        {.rank = rank, .step = rank, .heartbeat_age = rank == 40 ? 9.0 : 0.1});
  }
  TopView view({.coordinator = "a:1"});
  for (int i = 0; i < 90; ++i) {
    for (Seen& member : members) member.step += member.rank % 3;
    ASSERT_TRUE(view.Add(Status(1, members), absl::Seconds(i)).ok());
  }
  for (const size_t columns : {0, 1, 20, 80, 81, 300}) {
    for (const size_t rows : {1, 2, 5, 24, 100}) {
      const auto lines = view.Draw({.columns = columns, .rows = rows});
      EXPECT_LE(lines.size(), rows);
      for (const TopLine& line : lines) {
        EXPECT_LE(std::count_if(line.text.begin(), line.text.end(),
                                [](char c) { return (c & 0xC0) != 0x80; }),
                  columns);
      }
    }
  }
  EXPECT_THAT(Picture(view, {.columns = 80, .rows = 24}),
              ContainsRegex("and [0-9]+ more"));
  EXPECT_THAT(Picture(view, {.columns = 80, .rows = 100}), HasSubstr("host:163"));

  view.Press(TopKey::kNextOrder);
  view.Press(TopKey::kNextOrder);
  const std::string latest_first = Picture(view, {.columns = 80, .rows = 24});
  EXPECT_LT(latest_first.find("host:140"), latest_first.find("host:10"));
}

TEST(TopView, ShowsWhereTheTimeOfAStepGoes) {
  TopView view({.coordinator = "a:1", .glyphs = TopOptions::Glyphs::kAscii});
  const auto status = [](int steps, double compute, double others) {
    return absl::StrCat(
        R"({"jobs":[{"job":1,"name":"a","phase":"running","members":[{"rank":3,"phases":)",
        R"({"steps":)", steps, R"(,"seconds":{"compute":)", compute, R"(,"others":)",
        others, R"(}}}],"server_phases":[{"server":5,"steps":)", steps,
        R"(,"seconds":{"hold":)", 2 * compute, "}}]}]}");
  };
  view.Press(TopKey::kPhases);
  ASSERT_TRUE(view.Add(status(100, 70, 7), absl::Seconds(0)).ok());
  EXPECT_THAT(Picture(view), HasSubstr("no recent step"));
  ASSERT_TRUE(view.Add(status(110, 70.3, 7.1), absl::Seconds(1)).ok());
  const std::string picture = Picture(view);
  EXPECT_THAT(picture,
              ContainsRegex("3 +40.0 +30.0 +0.00 +0.00 +10.0 +0.00 +0.00 +c+o+\n"));
  EXPECT_THAT(picture,
              HasSubstr("server 5, ms a step: hold 60.0, decide 0.00, step 0.00, pub"));
  view.Press(TopKey::kPhases);
  EXPECT_THAT(Picture(view), HasSubstr("BYTES/S"));
}

TEST(TopView, ChoosesTheNewestJobThatRunsAndOthersByKey) {
  TopView view({.coordinator = "a:1"});
  EXPECT_THAT(Picture(view), HasSubstr("no servers yet"));
  view.Press(TopKey::kNextJob);
  ASSERT_TRUE(view.Add(R"({"jobs":[{"job":1,"name":"one","phase":"running"},
                                   {"job":2,"name":"two","phase":"running"},
                                   {"job":3,"name":"three","phase":"over",
                                    "reason":"all\u001b[2J left"}]})",
                       absl::Seconds(0))
                  .ok());
  EXPECT_THAT(Picture(view), HasSubstr("> two"));
  view.Press(TopKey::kNextJob);
  EXPECT_THAT(Picture(view), HasSubstr("> three"));
  EXPECT_THAT(Picture(view), HasSubstr("all\\x1b[2J left"));
  view.Press(TopKey::kNextJob);
  EXPECT_THAT(Picture(view), HasSubstr("> one"));
  view.Press(TopKey::kPreviousJob);
  EXPECT_THAT(Picture(view), HasSubstr("> three"));
  ASSERT_TRUE(view.Choose("one").ok());
  EXPECT_THAT(Picture(view), HasSubstr("> one"));
  EXPECT_EQ(view.Choose("tow").message(),
            "there is no job 'tow'; did you mean 'two'? There are also 'one', 'three'");
}

}  // namespace
}  // namespace syncline
