// The reduce phase of a step: figures about a block's gradient that the decision about
// the whole step needs (global norm for clipping, whether anything is not finite).
#pragma once

#include <span>

namespace syncline {

// Sum of squares in float64, in an order fixed by the element's number alone (16 running
// sums, added pairwise at the end), so that the bits do not depend on the CPU. Not finite
// exactly when some value is: the square of the largest float is far below the largest
// double.
double SumOfSquares(std::span<const float> values);

}  // namespace syncline
