// The mean of what recent steps of one member took. It keeps the member's sums
// (comm/base/step_phases.h) at the times when it had made more steps, and computes the
// mean from their differences.
//   StepWindow<6> window;
//   window.Add({.phases = sums, .bytes = bytes}, now);   // from time to time
//   if (const auto mean = window.OfAStep(now)) …          // mean->phases.steps is 1
//
// The window has ten seconds or the given length, or more if they have fewer than four
// steps. A sum is kept for about every two seconds of it.
//
// Thread safety: none.
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
  // Two sums that are less apart may differ only by chance.
  static constexpr absl::Duration kApart = absl::Seconds(2);
  // The shortest window: at least several heartbeats.
  static constexpr absl::Duration kLength = absl::Seconds(10);

  // `length` is at least kLength.
  explicit StepWindow(absl::Duration length = kLength) : length_(length) {}

  struct Sums {
    PhaseSums<kPhases> phases = {};
    uint64_t bytes = 0;
  };
  struct Mean {
    PhaseSums<kPhases> phases = {};  // of one step
    double bytes = 0;                // of one step
    absl::Duration length = {};      // of the window
  };

  // `now` is monotonic. If there are fewer steps than before, the process is a new one,
  // and the window starts again.
  void Add(const Sums& sums, absl::Duration now) {
    const uint64_t steps = sums.phases.steps;
    if (!kept_.empty() && steps < kept_.back().phases.steps) kept_.clear();
    // Between two steps there is nothing new, or only part of a step, which would look
    // like a whole one.
    if (!kept_.empty() && steps == kept_.back().phases.steps) return;
    // Several readers may call this at any time.
    const size_t size = kept_.size();
    if (size >= 2 && now - kept_[size - 2].time < kApart) kept_.pop_back();
    kept_.push_back({sums.phases, sums.bytes, now});
    while (kept_.size() > 2 && now - kept_[1].time >= length_ &&
           steps - kept_[1].phases.steps >= kMinSteps) {
      kept_.pop_front();
    }
  }

  // Returns nothing if no step was seen, or none for a time in which several should have
  // been.
  std::optional<Mean> OfAStep(absl::Duration now) const {
    if (kept_.size() < 2) return std::nullopt;
    const Kept& first = kept_.front();
    const Kept& last = kept_.back();
    const auto phases = syncline::OfAStep(first.phases, last.phases);
    if (!phases) return std::nullopt;
    const double seconds =
        std::accumulate(phases->seconds.begin(), phases->seconds.end(), 0.0);
    const absl::Duration patience = std::max(length_, kMinSteps * absl::Seconds(seconds));
    if (now - last.time > patience) return std::nullopt;
    const uint64_t bytes = last.bytes - std::min(first.bytes, last.bytes);
    const auto steps = static_cast<double>(last.phases.steps - first.phases.steps);
    return Mean{*phases, static_cast<double>(bytes) / steps, last.time - first.time};
  }

  bool is_empty() const { return kept_.empty(); }
  // Returns whether a step was seen since the first sum, however long ago.
  bool has_step() const { return kept_.size() >= 2; }

  // Returns when its last step was seen, or the first Add. REQUIRES: !is_empty().
  absl::Duration changed() const { return kept_.back().time; }

 private:
  static constexpr int kMinSteps = 4;

  struct Kept {
    PhaseSums<kPhases> phases = {};
    uint64_t bytes = 0;
    absl::Duration time = {};
  };
  absl::Duration length_;
  std::deque<Kept> kept_;  // with increasing numbers of steps
};

}  // namespace syncline
