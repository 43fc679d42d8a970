// Where the time of steps goes, in the picture of top_view.h: a line for each member and each
// server.
#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/top_view.h"
#include "comm/rpc/status_phases.h"

namespace syncline {
namespace {

// Statuses over which a step's mean is taken: as long as rates are.
constexpr size_t kPhaseSamples = 11;
constexpr size_t kMostServers = 4;

// "0.42", "12.3", "456".
std::string Milliseconds(double seconds) {
  const double ms = 1e3 * seconds;
  return absl::StrFormat("%.*f", ms < 9.995 ? 2 : ms < 99.95 ? 1 : 0, ms);
}

}  // namespace

std::optional<WorkerPhases> TopView::Member::PhasesOfAStep() const {
  if (samples.empty()) return std::nullopt;
  size_t first = samples.size() - std::min(samples.size(), kPhaseSamples);
  const WorkerPhases& last = samples.back().phases;
  // A step may take longer than that.
  while (first > 0 && samples[first].phases.steps == last.steps) --first;
  return OfAStep(samples[first].phases, last);
}

TopLine TopView::MemberHeader() const {
  const char* rank = order_ == Order::kRank ? "RANK" : "rank";
  if (shows_phases_) {
    return {absl::StrFormat("  %4s %8s %7s %6s %6s %6s %7s %6s  %s", rank, "MS/STEP",
                            "COMPUTE", "ENCODE", "PUSH", "OTHERS", "PUBLISH", "DECODE",
                            "LIKE THIS"),
            TopLine::Tone::kHeader};
  }
  const char* busy = order_ == Order::kBusy ? "BUSY<" : "BUSY";
  const char* beat = order_ == Order::kHeartbeat ? "BEAT<" : "BEAT";
  return {absl::StrFormat("  %4s %-13s %9s %6s %8s %11s %5s %6s %s", rank, "NAME", "STEP",
                          "BEHIND", "STEPS/S", "BYTES/S", busy, beat, "SPEED"),
          TopLine::Tone::kHeader};
}

// A bar of letters: each phase's first one, as wide as its share. Of the two that begin with
// a p the way back is a w, for weights.
TopLine TopView::DrawPhases(const Member& member, size_t columns) const {
  constexpr std::string_view kLetters = "cepowd";
  std::string cells = absl::StrFormat("  %4d", member.rank);
  const auto phases = member.PhasesOfAStep();
  if (!phases) return {cells + "  no step of late"};
  double total = 0;
  for (const double seconds : phases->seconds) total += seconds;
  constexpr std::array<int, 6> kWidths = {7, 6, 6, 6, 7, 6};
  absl::StrAppendFormat(&cells, " %8s", Milliseconds(total));
  for (size_t i = 0; i < phases->seconds.size(); ++i) {
    absl::StrAppendFormat(&cells, " %*s", kWidths[i], Milliseconds(phases->seconds[i]));
  }
  cells += "  ";
  const size_t left = columns > cells.size() ? columns - cells.size() : 0;
  double reached = 0;
  std::string bar;
  for (size_t i = 0; i < phases->seconds.size() && total > 0; ++i) {
    reached += phases->seconds[i] / total;
    const auto end =
        static_cast<size_t>(std::lround(reached * static_cast<double>(left)));
    bar.append(end - std::min(end, bar.size()), kLetters[i]);
  }
  return {cells + bar};
}

void TopView::DrawServerPhases(const Job& job, std::vector<TopLine>& lines) const {
  size_t shown = 0;
  for (const auto& [server, kept] : job.servers) {
    const auto mean = OfAStep(kept.front(), kept.back());
    if (!mean) continue;
    if (++shown > kMostServers) break;
    std::string line = absl::StrFormat("  server %d, ms a step:", server);
    for (size_t i = 0; i < kServerPhaseNames.size(); ++i) {
      absl::StrAppend(&line, i == 0 ? " " : ", ", kServerPhaseNames[i], " ",
                      Milliseconds(mean->seconds[i]));
    }
    lines.push_back({line});
  }
}

}  // namespace syncline
