// What a step of late took on one member: sums (comm/base/step_phases.h) as they were each
// time that it had made steps more, from whose differences a mean comes out.
//
//   StepWindow<6> window;
//   window.Add({.phases = sums, .bytes = bytes}, now);   // now and then
//   if (const auto mean = window.OfAStep(now)) …          // mean->phases.steps is 1
//
// It reaches back ten seconds, and further where fewer than four steps were made in them.
// Bounded: about ten sums are kept. Thread safety: none.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <numeric>
#include <optional>

#include "absl/time/time.h"
#include "comm/base/step_phases.h"
#include "comm/rpc/status_phases.h"

namespace syncline {

template <size_t kPhases>
class StepWindow {
 public:
  // Two looks that are less apart may see nothing but chance.
  static constexpr absl::Duration kApart = absl::Seconds(2);

  struct Sums {
    PhaseSums<kPhases> phases = {};
    uint64_t bytes = 0;
  };
  struct Mean {
    PhaseSums<kPhases> phases = {};  // of a step
    double bytes = 0;                // likewise
    absl::Duration length = {};      // of the window
  };

  // `now` is monotonic. Fewer steps than before are those of another life.
  void Add(const Sums& sums, absl::Duration now) {
    const uint64_t steps = sums.phases.steps;
    if (!kept_.empty() && steps < kept_.back().phases.steps) kept_.clear();
    // Between steps there is nothing new, or a part of a step, which would be taken for one.
    if (!kept_.empty() && steps == kept_.back().phases.steps) return;
    // Several may ask, at any times.
    const size_t size = kept_.size();
    if (size >= 2 && now - kept_[size - 2].time < kApart) kept_.pop_back();
    kept_.push_back({sums.phases, sums.bytes, now});
    while (kept_.size() > 2 && now - kept_[1].time >= kLength &&
           steps - kept_[1].phases.steps >= kEnoughSteps) {
      kept_.pop_front();
    }
  }

  // Nothing when no step was seen, or none for as long as several take.
  std::optional<Mean> OfAStep(absl::Duration now) const {
    if (kept_.size() < 2) return std::nullopt;
    const Kept& first = kept_.front();
    const Kept& last = kept_.back();
    const auto phases = syncline::OfAStep(first.phases, last.phases);
    if (!phases) return std::nullopt;
    const double seconds =
        std::accumulate(phases->seconds.begin(), phases->seconds.end(), 0.0);
    const absl::Duration patience =
        std::max(kLength, kEnoughSteps * absl::Seconds(seconds));
    if (now - last.time > patience) return std::nullopt;
    const uint64_t bytes = last.bytes - std::min(first.bytes, last.bytes);
    const auto steps = static_cast<double>(last.phases.steps - first.phases.steps);
    return Mean{*phases, static_cast<double>(bytes) / steps, last.time - first.time};
  }

  // When its last step was seen, or it itself. After Add.
  absl::Duration changed() const { return kept_.back().time; }

 private:
  // Not shorter than some heartbeats.
  static constexpr absl::Duration kLength = absl::Seconds(10);
  static constexpr int kEnoughSteps = 4;

  struct Kept {
    PhaseSums<kPhases> phases = {};
    uint64_t bytes = 0;
    absl::Duration time = {};
  };
  std::deque<Kept> kept_;  // of different steps
};

}  // namespace syncline
