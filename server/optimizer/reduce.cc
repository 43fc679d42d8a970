#include "server/optimizer/reduce.h"

#include <array>
#include <cstddef>

#include "comm/base/isa.h"

namespace syncline {
namespace {

// Two AVX-512 registers of doubles hide the latency of the addition.
constexpr size_t kLanes = 16;

SYNCLINE_KERNEL void AddSquaresBody(size_t rows, const float* values, double* sums) {
  double lanes[kLanes] = {};
  for (size_t row = 0; row < rows; ++row) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const double value = values[row * kLanes + lane];
      lanes[lane] += value * value;
    }
  }
  for (size_t lane = 0; lane < kLanes; ++lane) sums[lane] = lanes[lane];
}

}  // namespace

double SumOfSquares(std::span<const float> values) {
  std::array<double, kLanes> sums;
  const size_t rows = values.size() / kLanes;
  Kernel<AddSquaresBody>::Run(rows, values.data(), sums.data());
  for (size_t i = rows * kLanes; i < values.size(); ++i) {
    const double value = values[i];
    sums[i % kLanes] += value * value;
  }
  for (size_t width = kLanes / 2; width > 0; width /= 2) {
    for (size_t lane = 0; lane < width; ++lane) sums[lane] += sums[lane + width];
  }
  return sums[0];
}

}  // namespace syncline
