#include "comm/codec/sparse/proportional.h"

#include <array>
#include <cmath>
#include <limits>

namespace syncline {
namespace {

// After this many rounds t may still be a little too large. Then fewer values are sent,
// without bias.
constexpr int kMaxRounds = 16;

// Sums have this many parts, always in the same order, so that any CPU gives the same
// bits.
constexpr size_t kLanes = 8;

struct Below {
  double sum = 0;      // of the magnitudes below a bound
  uint32_t above = 0;  // values at or above it
};

Below SumBelow(std::span<const float> values, double bound) {
  std::array<double, kLanes> sums = {};
  std::array<uint32_t, kLanes> above = {};
  const auto add = [&](size_t lane, float value) {
    const double magnitude = std::abs(static_cast<double>(value));
    const bool is_below = magnitude < bound;
    sums[lane] += is_below ? magnitude : 0.0;
    above[lane] += is_below ? 0 : 1;
  };
  size_t i = 0;
  for (; i + kLanes <= values.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) add(lane, values[i + lane]);
  }
  for (size_t lane = 0; i + lane < values.size(); ++lane) add(lane, values[i + lane]);
  Below all;
  for (size_t lane = 0; lane < kLanes; ++lane) {
    all.sum += sums[lane];
    all.above += above[lane];
  }
  return all;
}

}  // namespace

// t falls from round to round. Values that are certain to be sent take less of k than
// their share of the sum; the others share the rest.
double ProportionalThreshold(std::span<const float> values, uint32_t k) {
  double t = std::numeric_limits<double>::infinity();
  for (int round = 0; round < kMaxRounds; ++round) {
    const Below rest = SumBelow(values, t);
    if (rest.sum == 0 || rest.above >= k) break;
    const double next = rest.sum / (k - rest.above);
    if (next >= t) break;
    t = next;
  }
  return t;
}

void SampleProportionally(std::span<const float> values, double t, uint32_t draw,
                          IndexList& found) {
  constexpr uint64_t kOne = uint64_t{1} << 32;
  const double scale = static_cast<double>(kOne) / t;
  found.set_count(0);
  uint64_t total = draw;  // sum of the probabilities, in units of 2^-32
  for (uint32_t i = 0; i < values.size(); ++i) {
    const double magnitude = std::abs(static_cast<double>(values[i]));
    const uint64_t before = total / kOne;
    total += magnitude >= t ? kOne : static_cast<uint64_t>(magnitude * scale);
    if (total / kOne != before) found.Append(i);
  }
}

}  // namespace syncline
