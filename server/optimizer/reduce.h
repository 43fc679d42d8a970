// Sums over a gradient, in float64 and in an order that only the position of a value
// fixes: what the decision about a step, gradient transforms and optimizers need.
//
//   RunningSquares squares;
//   for (each piece of a strip) squares.Add(piece);
//   figures[0] += squares.Total();
#pragma once

#include <array>
#include <cstddef>
#include <span>

namespace syncline {

// 16 running sums, value i in sum i % 16, added pairwise at the end: the same bits on
// every CPU, and no addition waits for the one before it.
inline constexpr size_t kSumLanes = 16;

// The sum of such running sums; `lanes` is used up.
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

// Not finite exactly when some value is: the square of the largest float is far below the
// largest double.
double SumOfSquares(std::span<const float> values);

}  // namespace syncline
