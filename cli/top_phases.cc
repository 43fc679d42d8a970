// TopView: draws where the time of steps goes, one line for each member and each server.
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

// Number of statuses over which a step's mean is taken. They span the same time as rates.
constexpr size_t kPhaseSamples = 11;
constexpr size_t kMaxServersShown = 4;

// Returns for example "0.42", "12.3" or "456".
std::string Milliseconds(double seconds) {
  const double ms = 1e3 * seconds;
  return absl::StrFormat("%.*f", ms < 9.995 ? 2 : ms < 99.95 ? 1 : 0, ms);
}

}  // namespace

std::optional<WorkerPhases> TopView::Member::PhasesOfAStep() const {
  if (samples.empty()) return std::nullopt;
  size_t first = samples.size() - std::min(samples.size(), kPhaseSamples);
  const WorkerPhases& last = samples.back().phases;
  // Goes further back if no step was completed in these statuses.
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

// Draws a bar of letters: the first letter of each phase, repeated in proportion to its
// share. Publish is shown as w, for weights, since push begins with p too.
TopLine TopView::DrawPhases(const Member& member, size_t columns) const {
  constexpr std::string_view kLetters = "cepowd";
  std::string cells = absl::StrFormat("  %4d", member.rank);
  const auto phases = member.PhasesOfAStep();
  if (!phases) return {cells + "  no recent step"};
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
    if (++shown > kMaxServersShown) break;
    std::string line = absl::StrFormat("  server %d, ms a step:", server);
    for (size_t i = 0; i < kServerPhaseNames.size(); ++i) {
      absl::StrAppend(&line, i == 0 ? " " : ", ", kServerPhaseNames[i], " ",
                      Milliseconds(mean->seconds[i]));
    }
    lines.push_back({line});
  }
}

}  // namespace syncline
