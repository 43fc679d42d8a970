// Spans of several members as one file in Chrome's trace-event format, which
// ui.perfetto.dev and chrome://tracing open (docs/traces.md).
//
//   TraceData data = ...;
//   const TraceSummary summary = WriteTrace(data, file);
//   for (const std::string& line : summary.missing) std::cerr << line;
//
// One process for each member, one track for each of its threads; what overlaps (pushes of
// blocks that are on their way at once, steps that are held) are tracks of their own.
// Arrows lead from a block's encoding by the server's engine to where its new view is
// decoded. What is missing is said in the file, too: it is valid whatever became of the
// members.
//
// Pure.
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
  uint64_t lost = 0;     // spans, by the member
  uint64_t dropped = 0;  // spans, by the coordinator
  struct Clock {
    int64_t offset_ns = 0;  // what the coordinator's is ahead
    uint64_t error_ns = 0;
    int64_t unix_ns = 0;  // the time of day of its zero
  };
  std::optional<Clock> clock = std::nullopt;
  std::map<std::string, std::vector<TraceSpan>> tracks = {};
};

struct TraceData {
  std::string job = {};
  std::string version = {};  // of this binary
  uint64_t first_step = 0;
  uint64_t until = 0;      // the first step that is not part of it
  std::string ended = {};  // why earlier than at `until`; empty: it did not
  std::vector<TraceFileMember> members = {};
  std::vector<std::string> blocks = {};  // what each is of: "encoder.weight, part 2 of 4"
};

struct TraceSummary {
  uint64_t spans = 0;
  uint64_t flows = 0;
  std::vector<std::string> missing = {};  // sentences; empty: it is whole
};

TraceSummary WriteTrace(const TraceData& data, std::ostream& out);

}  // namespace syncline
