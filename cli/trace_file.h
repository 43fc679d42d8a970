// Writes the spans of several members to one file in Chrome's trace-event format, which
// ui.perfetto.dev and chrome://tracing open (docs/traces.md).
//
//   TraceData data = ...;
//   const TraceSummary summary = WriteTrace(data, file);
//   for (const std::string& line : summary.missing) std::cerr << line;
//
// Each member is a process, and each of its threads is a track. Spans that overlap, such
// as concurrent pushes of blocks or held steps, get tracks of their own. Arrows lead from
// the encoding of a block in the server's engine to the decoding of its new view. The
// file is valid even if members are missing, and lists what is missing.
//
// Pure function.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "comm/base/trace_recorder.h"

namespace syncline {

struct TraceFileMember {
  bool is_worker = false;
  uint32_t number = 0;
  std::string name = {};
  bool answered = false;
  bool done = false;
  bool gone = false;
  uint64_t lost = 0;     // spans that the member lost
  uint64_t dropped = 0;  // spans that the coordinator dropped
  struct Clock {
    int64_t offset_ns = 0;  // coordinator's clock minus the member's
    uint64_t error_ns = 0;
    int64_t unix_ns = 0;  // Unix time of the member's clock at zero
  };
  std::optional<Clock> clock = std::nullopt;
  std::map<std::string, std::vector<TraceSpan>> tracks = {};
};

struct TraceData {
  std::string job = {};
  std::string version = {};  // this binary's
  uint64_t first_step = 0;
  uint64_t until = 0;      // the first step after the recorded ones
  std::string ended = {};  // why it ended before `until`; empty: it did not
  std::vector<TraceFileMember> members = {};
  // the contents of each block: "encoder.weight, part 2 of 4"
  std::vector<std::string> blocks = {};
};

struct TraceSummary {
  uint64_t spans = 0;
  uint64_t flows = 0;
  std::vector<std::string> missing = {};  // sentences; empty: complete
};

TraceSummary WriteTrace(const TraceData& data, std::ostream& out);

}  // namespace syncline
