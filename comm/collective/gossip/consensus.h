// Measures how far ranks are from each other: sqrt(mean over ranks of |x_r - mean|^2).
//
// Computing the mean of all values would cost as much as an all-reduce of them. A count
// sketch (Charikar et al. 2002) costs one pass and 32 KiB: each value is added to one of
// 4,096 sums, with a sign that depends on its position. Sketches are linear, so means and
// differences of sketches are sketches of means and differences. The square of a sketch
// is in expectation the square of its values. It is exact for up to 4,096 values. Beyond
// that, the distance is within 4 % in 999 of 1,000 cases, unless a few values have most
// of it.
//
// Thread safety: pure functions, except for the group's operations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/collective/group/group.h"

namespace syncline::collective {

inline constexpr size_t kSketchSums = 4096;

// Returns kSketchSums numbers. All ranks must use the same seed.
std::vector<double> SketchOf(std::span<const float> values, uint64_t seed);

// Returns the distance, the same on all ranks. This is a collective operation: an
// all-reduce of 4,096 doubles, and one of a single double. Errors are the group's. Zero
// `timeout`: the group's timeout.
absl::StatusOr<double> ConsensusDistance(Group& group, std::span<const float> values,
                                         uint64_t seed, absl::Duration timeout);

}  // namespace syncline::collective
