// Computes what two partners add to their values.
//
//   x_i += gamma (y_j - y_i),  x_j += gamma (y_i - y_j)
//
// y is what both partners know of each other's values. If their operands are exchanged,
// subtraction and multiplication of floats give the same result with the opposite sign.
// So one delta is the exact negative of the other: their sum is 0 in all bits, whatever y
// is. The sum of all ranks' values changes only by the rounding of one addition for each
// element.
//
// Thread safety: a pure function.
#pragma once

#include <cstddef>
#include <span>

namespace syncline::collective {

// REQUIRES: spans of one size. `delta` may be one of the others.
inline void PairDelta(float gamma, std::span<const float> own, std::span<const float> its,
                      std::span<float> delta) {
  for (size_t i = 0; i < delta.size(); ++i) delta[i] = gamma * (its[i] - own[i]);
}

}  // namespace syncline::collective
