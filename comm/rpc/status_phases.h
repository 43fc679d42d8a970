// Reads step phases (comm/base/step_phases.h) from a status, and computes the mean of
// recent steps.
//
//   const auto mean = OfAStep(PhasesOf(before, kWorkerPhaseNames), PhasesOf(now, kWorkerPhaseNames));
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "comm/base/step_phases.h"
#include "nlohmann/json.hpp"

namespace syncline {

// Reads the phases of a status; missing ones are zero.
template <size_t kPhases>
PhaseSums<kPhases> PhasesOf(const nlohmann::json& json,
                            const std::array<const char*, kPhases>& names) {
  PhaseSums<kPhases> sums{.steps = json.value("steps", uint64_t{0})};
  const nlohmann::json seconds = json.value("seconds", nlohmann::json::object());
  for (size_t i = 0; i < kPhases; ++i) sums.seconds[i] = seconds.value(names[i], 0.0);
  return sums;
}

// Returns the mean of one step between two readings; nullopt if there was no step.
template <size_t kPhases>
std::optional<PhaseSums<kPhases>> OfAStep(const PhaseSums<kPhases>& first,
                                          const PhaseSums<kPhases>& last) {
  if (last.steps <= first.steps) return std::nullopt;
  PhaseSums<kPhases> mean{.steps = 1};
  for (size_t i = 0; i < kPhases; ++i) {
    mean.seconds[i] = std::max(0.0, last.seconds[i] - first.seconds[i]) /
                      static_cast<double>(last.steps - first.steps);
  }
  return mean;
}

}  // namespace syncline
