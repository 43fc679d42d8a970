// Sums over a gradient, for the decision about a step, gradient transforms and
// optimizers. They are in float64, in an order that depends only on the positions of
// values.
//
//   RunningSquares squares;
//   for (each piece of a strip) squares.Add(piece);
//   figures[0] += squares.Total();
#pragma once

#include <array>
#include <cstddef>
#include <span>

namespace syncline {

// Number of running sums. Value i goes into sum i % 16, and the sums are added pairwise
// at the end. So the bits are the same on every CPU, and no addition waits for the one
// before it.
inline constexpr size_t kSumLanes = 16;

// Returns the sum of the running sums. Overwrites `lanes`.
double AddLanes(std::span<double, kSumLanes> lanes);

// Sum of squares of values that come in pieces.
class RunningSquares {
 public:
  // REQUIRES: every piece but the last is a multiple of kSumLanes long.
  void Add(std::span<const float> piece);
  double Total() const;

 private:
  std::array<double, kSumLanes> lanes_ = {};
};

// Returns the sum of squares. It is finite exactly if all values are, because the square
// of the largest float is far below the largest double.
double SumOfSquares(std::span<const float> values);

}  // namespace syncline
