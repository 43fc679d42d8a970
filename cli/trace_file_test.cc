#include "cli/trace_file.h"

#include <map>
#include <sstream>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace syncline {
namespace {

using Json = nlohmann::json;

// Returns one block of step 5 from worker 0, whose clock began 1 s before the server's.
TraceData OneBlock() {
  TraceData data{.job = "bert", .version = "test", .first_step = 5, .until = 6};
  TraceFileMember server{.number = 0, .name = "host:1", .answered = true, .done = true};
  server.clock = TraceFileMember::Clock{.offset_ns = 0, .error_ns = 100, .unix_ns = 7};
  server.tracks["engine 0"] = {
      {.begin_ns = 3000,
       .end_ns = 4000,
       .step = 5,
       .block = 2,
       .rank = 0,
       .kind = TraceKind::kReceive},
      {.begin_ns = 5000, .end_ns = 6000, .step = 5, .kind = TraceKind::kStep},
      {.begin_ns = 3000, .end_ns = 3500, .step = 5, .kind = TraceKind::kHold}};
  TraceFileMember worker{
      .is_worker = true, .number = 0, .name = "host:2", .answered = true, .done = true};
  worker.clock =
      TraceFileMember::Clock{.offset_ns = -1000000000, .error_ns = 200, .unix_ns = 1700};
  const auto at = [](int64_t time) { return time + 1000000000; };
  worker.tracks["exchange"] = {{.begin_ns = at(1000),
                                .end_ns = at(2000),
                                .step = 5,
                                .block = 2,
                                .rank = 0,
                                .kind = TraceKind::kEncodeBlock},
                               {.begin_ns = at(2000),
                                .end_ns = at(4500),
                                .step = 5,
                                .block = 2,
                                .rank = 0,
                                .kind = TraceKind::kPushBlock},
                               {.begin_ns = at(7000),
                                .end_ns = at(8001),
                                .step = 5,
                                .block = 2,
                                .rank = 0,
                                .kind = TraceKind::kDecodeBlock}};
  worker.tracks["program"] = {
      {.begin_ns = at(500), .end_ns = at(1500), .step = 5, .kind = TraceKind::kCompute},
      {.begin_ns = at(1500), .end_ns = at(9000), .step = 5, .kind = TraceKind::kOthers},
      {.begin_ns = at(9000), .end_ns = at(9999), .step = 6, .kind = TraceKind::kCompute}};
  data.members = {server, worker};
  return data;
}

struct Written {
  TraceSummary summary;
  Json json;

  std::vector<Json> Events(const std::string& phase, const std::string& name = "") const {
    std::vector<Json> found;
    for (const Json& event : json["traceEvents"]) {
      if (event["ph"] == phase && (name.empty() || event["name"] == name))
        found.push_back(event);
    }
    return found;
  }
};

Written Write(const TraceData& data) {
  std::ostringstream out;
  Written written{.summary = WriteTrace(data, out), .json = {}};
  written.json = Json::parse(out.str(), nullptr, false);
  EXPECT_FALSE(written.json.is_discarded()) << out.str();
  return written;
}

TEST(TraceFile, TimesAreTheCoordinatorsFromTheFirstSpanOn) {
  const Written written = Write(OneBlock());
  const auto encoded = written.Events("X", "encode block");
  ASSERT_EQ(encoded.size(), 1u);
  EXPECT_DOUBLE_EQ(encoded[0]["ts"], 0.5);  // microseconds after the first compute
  EXPECT_DOUBLE_EQ(encoded[0]["dur"], 1.0);
  const auto received = written.Events("X", "receive");
  ASSERT_EQ(received.size(), 1u);
  EXPECT_DOUBLE_EQ(received[0]["ts"], 2.5);
  EXPECT_EQ(received[0]["args"], (Json{{"step", 5}, {"block", 2}, {"rank", 0}}));
  EXPECT_TRUE(written.summary.missing.empty());
  EXPECT_EQ(written.summary.spans, 8u) << "the one behind the window is not written";
}

TEST(TraceFile, ABlocksArrowLeadsFromItsEncodingByTheStepToItsView) {
  const Written written = Write(OneBlock());
  EXPECT_EQ(written.summary.flows, 1u);
  const Json begin = written.Events("s").at(0), end = written.Events("f").at(0);
  EXPECT_EQ(begin["id"], end["id"]);
  EXPECT_DOUBLE_EQ(begin["ts"], 1.0);  // in the middle of its slice
  EXPECT_EQ(begin["pid"], 2);
  EXPECT_EQ(end["pid"], 2);
  EXPECT_DOUBLE_EQ(end["ts"], 7.0);
  const auto steps = written.Events("t");
  ASSERT_EQ(steps.size(), 2u)
      << "where it was received, and the decision that made the step";
  EXPECT_EQ(steps[0]["pid"], 1);
  EXPECT_DOUBLE_EQ(steps[1]["ts"], 5.0);
}

// Perfetto drops what leads back in time.
TEST(TraceFile, NoArrowLeadsBackInTimeIfTheClocksMayBeMovedSoFar) {
  TraceData data = OneBlock();
  data.members[1].clock->offset_ns += 2100;  // received at 3500, encoded at 3600
  data.members[1].clock->error_ns = 2500;
  const Written written = Write(data);
  const Json begin = written.Events("s").at(0), end = written.Events("f").at(0);
  const auto steps = written.Events("t");
  EXPECT_LT(begin["ts"], steps.at(0)["ts"]);
  EXPECT_LT(steps.at(1)["ts"], end["ts"]);
  // An arrow begins and ends in the middle of its slice.
  const Json encoded = written.Events("X", "encode block").at(0);
  EXPECT_DOUBLE_EQ(begin["ts"], encoded["ts"].get<double>() + 0.5);
  const Json& worker = written.json["otherData"]["members"][1];
  EXPECT_LT(worker["clock_error_ns"], 2500);
}

TEST(TraceFile, ABlockIsNamedByItsTensor) {
  TraceData data = OneBlock();
  data.blocks = {"a", "\"b\", part 1 of 2", "\"b\", part 2 of 2"};
  const Written written = Write(data);
  EXPECT_EQ(written.Events("X", "receive").at(0)["args"]["tensor"], "\"b\", part 2 of 2");
  EXPECT_EQ(written.Events("b", "push block").at(0)["args"]["tensor"],
            "\"b\", part 2 of 2");
  EXPECT_FALSE(written.Events("X", "step").at(0)["args"].contains("tensor"));
}

TEST(TraceFile, AnArrowWithoutAnEndIsNotDrawn) {
  TraceData data = OneBlock();
  data.members[1].tracks["exchange"].pop_back();
  const Written written = Write(data);
  EXPECT_EQ(written.summary.flows, 0u);
  EXPECT_TRUE(written.Events("s").empty());
  EXPECT_TRUE(written.Events("t").empty());
}

TEST(TraceFile, PhasesLieInTheirSteps) {
  const Written written = Write(OneBlock());
  const auto steps = written.Events("X", "step 5");
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_DOUBLE_EQ(steps[0]["ts"], 0.0);
  EXPECT_DOUBLE_EQ(steps[0]["dur"], 8.5);
  TraceData mixed = OneBlock();
  mixed.until = 7;
  mixed.members[1].tracks["program"].push_back({.begin_ns = 1000009999,
                                                .end_ns = 1000010500,
                                                .step = 5,
                                                .kind = TraceKind::kOthers});
  EXPECT_TRUE(Write(mixed).Events("X", "step 5").empty())
      << "steps that take turns nest nowhere";
}

// Phases of waiting begin and end within a forward pass, so they would cross it on one
// track.
TEST(TraceFile, PassesOfTheModelAreSlicesOfATrackBelowTheProgram) {
  TraceData data = OneBlock();
  const auto at = [](int64_t time) { return time + 1000000000; };
  data.members[1].tracks["model"] = {
      {.begin_ns = at(600), .end_ns = at(1600), .step = 5, .kind = TraceKind::kForward},
      {.begin_ns = at(1700), .end_ns = at(2700), .step = 5, .kind = TraceKind::kBackward},
      {.begin_ns = at(9100), .end_ns = at(9200), .step = 6, .kind = TraceKind::kForward}};
  const Written written = Write(data);
  const auto forward = written.Events("X", "forward");
  ASSERT_EQ(forward.size(), 1u) << "the other one is behind the window";
  EXPECT_DOUBLE_EQ(forward[0]["ts"], 0.1);
  EXPECT_DOUBLE_EQ(forward[0]["dur"], 1.0);
  EXPECT_EQ(forward[0]["args"], (Json{{"step", 5}}));
  ASSERT_EQ(written.Events("X", "backward").size(), 1u);
  std::map<int, int> places;
  for (const Json& event : written.Events("M", "thread_sort_index")) {
    places[event["tid"]] = event["args"]["sort_index"];
  }
  const int model = forward[0]["tid"];
  const int program = written.Events("X", "compute").at(0)["tid"];
  EXPECT_NE(model, program);
  EXPECT_EQ(places[program], 0);
  EXPECT_EQ(places[model], 1);
}

TEST(TraceFile, WhatOverlapsIsNoSliceOfTheThread) {
  const Written written = Write(OneBlock());
  EXPECT_EQ(written.Events("b", "push block").size(), 1u);
  EXPECT_EQ(written.Events("e", "push block").size(), 1u);
  EXPECT_EQ(written.Events("b", "hold").size(), 1u);
  EXPECT_TRUE(written.Events("X", "hold").empty());
}

TEST(TraceFile, SaysWhatIsMissing) {
  TraceData data = OneBlock();
  data.until = 8;
  data.ended = "the time limit ended it after 1m";
  data.members[0].lost = 3;
  data.members[0].dropped = 4;
  data.members[1].done = false;
  data.members[1].gone = true;
  data.members.push_back({.is_worker = true, .number = 1});
  const Written written = Write(data);
  const std::vector<std::string> expected = {
      "the time limit ended it after 1m",
      "server 0 had no room for 3 spans",
      "server 0 sent 4 spans more than the coordinator keeps",
      "server 0 recorded nothing of 2 steps, the first is 6",
      "worker 0 left before it had sent everything",
      "worker 0 recorded nothing of 1 steps, the first is 7",
      "worker 1 did not answer: is it of an older version?"};
  EXPECT_EQ(written.summary.missing, expected);
  EXPECT_EQ(written.json["otherData"]["missing"], Json(expected));
}

TEST(TraceFile, ClocksAndTheTimeOfDayAreInTheFile) {
  const Written written = Write(OneBlock());
  const Json& worker = written.json["otherData"]["members"][1];
  EXPECT_EQ(worker["member"], "worker 0");
  EXPECT_EQ(worker["clock_error_ns"], 200);
  // ts 0 is 500 ns on the coordinator's clock, and 1 s and 500 ns on the worker's.
  EXPECT_EQ(worker["unix_ns_at_zero"], 1700 + 1000000500);
}

TEST(TraceFile, NamesAreQuotedAndAnEmptyTraceIsValid) {
  TraceData data{.job = "a\"b\\\xff", .first_step = 1, .until = 1};
  data.members.push_back(
      {.is_worker = true, .name = "\"\n", .answered = true, .done = true});
  const Written written = Write(data);
  EXPECT_EQ(written.Events("M", "process_name")[0]["args"]["name"], "worker 0 \"\n");
}

}  // namespace
}  // namespace syncline
