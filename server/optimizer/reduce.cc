#include "server/optimizer/reduce.h"

#include "comm/base/isa.h"

namespace syncline {
namespace {

SYNCLINE_KERNEL void AddSquaresBody(size_t rows, const float* values, double* sums) {
  double lanes[kSumLanes];
  for (size_t lane = 0; lane < kSumLanes; ++lane) lanes[lane] = sums[lane];
  for (size_t row = 0; row < rows; ++row) {
    for (size_t lane = 0; lane < kSumLanes; ++lane) {
      const double value = values[row * kSumLanes + lane];
      lanes[lane] += value * value;
    }
  }
  for (size_t lane = 0; lane < kSumLanes; ++lane) sums[lane] = lanes[lane];
}

}  // namespace

double AddLanes(std::span<double, kSumLanes> lanes) {
  for (size_t width = kSumLanes / 2; width > 0; width /= 2) {
    for (size_t lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

void RunningSquares::Add(std::span<const float> piece) {
  const size_t rows = piece.size() / kSumLanes;
  Kernel<AddSquaresBody>::Run(rows, piece.data(), lanes_.data());
  for (size_t i = rows * kSumLanes; i < piece.size(); ++i) {
    const double value = piece[i];
    lanes_[i % kSumLanes] += value * value;
  }
}

double RunningSquares::Total() const {
  std::array<double, kSumLanes> lanes = lanes_;
  return AddLanes(lanes);
}

double SumOfSquares(std::span<const float> values) {
  RunningSquares squares;
  squares.Add(values);
  return squares.Total();
}

}  // namespace syncline
