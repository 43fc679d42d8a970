// Finds the way of each contribution in the spans of a trace: from the encoding of a block
// on a worker by its server's engine to the decoding of the new view. Then compares the
// members' clocks by it: nothing arrives before it was sent.
//
//   const std::vector<TraceArrow> arrows = FindArrows(data);
//   const auto clocks = ClocksOf(arrows, data.members);
//
// Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "cli/trace_file.h"

namespace syncline {

// The middle of a span.
struct TracePlace {
  size_t member = 0;    // its index
  size_t track = 0;     // the index of the member's track
  int64_t time_ns = 0;  // on the member's clock
};

struct TraceArrow {
  TracePlace encoded = {};
  TracePlace received = {};
  std::optional<TracePlace> made = std::nullopt;  // the step, unless a receipt made it
  TracePlace decoded = {};
};

// Returns the arrows of which both ends were recorded in the window.
std::vector<TraceArrow> FindArrows(const TraceData& data);

// Returns each member's clock, so moved within its bound that no arrow leads back in time.
// It is in the middle of what is possible, so the bounds get smaller. If there are no such
// clocks, returns the members' own.
std::vector<std::optional<TraceFileMember::Clock>> ClocksOf(
    const std::vector<TraceArrow>& arrows, const std::vector<TraceFileMember>& members);

}  // namespace syncline
