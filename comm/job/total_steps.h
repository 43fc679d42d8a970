// How many steps a program is going to make: what the setting `total_steps` of a job
// means. It is for those who show a job's progress, and changes nothing in the training.
//
//   ParseTotalSteps("1000")   // 1000
//   ParseTotalSteps("none")   // 0: unknown
//
// A program that ends earlier, or makes more steps, does nothing wrong.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace syncline {

inline constexpr uint64_t kMostTotalSteps = 1'000'000'000'000'000;

// Returns 0 for "none". InvalidArgument says what is allowed.
absl::StatusOr<uint64_t> ParseTotalSteps(std::string_view text);

// Returns the same for all values: workers of one job may expect different numbers, since
// their parts of the data may differ. The one that declares the job is believed.
std::string CanonicalTotalSteps(std::string_view text);

}  // namespace syncline
