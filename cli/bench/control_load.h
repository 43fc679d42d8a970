// Members that consist only of their control streams. `syncline bench control` connects
// them to a coordinator to see how many it can serve.
//
// A worker says hello with a job of `tensors` tensors, and sends heartbeats with
// statistics as a real one does. A server answers requests but holds no data. All members
// share a few connections.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace syncline {

struct ControlLoadOptions {
  std::string coordinator;         // host:port
  std::string scenario = "start";  // start, death, steady or tensors
  uint32_t workers = 1000;
  uint32_t servers = 1;
  uint32_t shards = 2;     // of each server
  uint32_t tensors = 160;  // of the job; a ResNet-50 has 161
  uint32_t channels = 32;  // connections, shared by the members
  double seconds = 10;     // duration of scenario `steady`
  double failure_timeout = 10;
  std::string report;  // path of the report
  // Called when the scenario begins and ends, with one of the names below.
  std::function<void(std::string_view)> on_mark = nullptr;
};

inline constexpr std::string_view kScenarioBegins = "the scenario begins";
inline constexpr std::string_view kScenarioEnds = "the scenario ends";

// The job that scenario `tensors` adds.
inline constexpr uint32_t kLargeJobWorkers = 32;
inline constexpr uint32_t kLargeJobTensors = 100000;

// Joins, plays the scenario and leaves. Returns these values:
//   begin_seconds    from the first hello until the last worker was welcomed
//   seconds          duration of the scenario
//   beats_per_second, promised_beats_per_second
//                    heartbeats sent, and expected: one per F/10 from each member left
//   lost, reasons    members whose stream ended although they beat, and the first reasons
//   answer_seconds   time until the coordinator answered a question that its state machine
//                    must handle: "median", "p10", "p90" and "max", the longest time that
//                    anything delayed it
//   received, sent   messages and bytes of all members during the scenario, by kind
// Fails with DeadlineExceeded if the job does not begin.
//   begin_seconds    from the first hello until the last worker was welcomed
//   seconds          of the scenario
//   beats_per_second, promised_beats_per_second
//                    heartbeats that the members said, and one each F/10 of those there are
//   lost, reasons    members whose stream ended though they beat, and the first reasons
//   answer_seconds   how long the coordinator took to answer a question that its state
//                    machine must see: "median", "p10", "p90" and "max", which is the
//                    longest that anything held it up
//   received, sent   of all members during the scenario, by kind: messages and bytes
// DeadlineExceeded when the job does not begin.
absl::StatusOr<nlohmann::json> RunControlLoad(const ControlLoadOptions& options);

}  // namespace syncline
