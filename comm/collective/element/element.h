// Element types of collective operations, and the kernels that reduce them.
//
// BF16 and FP16 are combined in FP32 and rounded once per call. An average is a sum that
// is divided in the last call; integers are divided toward zero. Integer sums and
// products wrap around. A NaN among the values makes a minimum or maximum NaN. All NaN
// results are the quiet NaN without sign or payload. -0 is less than +0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/status.h"

namespace syncline::collective {

// The numbers are used on the wire and in the C interface, so they must never change.
enum class ElementType : uint8_t {
  kF32 = 0,
  kBf16 = 1,
  kF16 = 2,
  kF64 = 3,
  kI64 = 4,
  kI32 = 5,
  kI8 = 6,
  kU8 = 7,
};
enum class ReduceOp : uint8_t {
  kSum = 0,
  kAverage = 1,
  kMin = 2,
  kMax = 3,
  kProduct = 4,
  kPremultipliedSum = 5,  // a sum of values that Scale has multiplied
  kBitwiseAnd = 6,        // integers only, as are the next two
  kBitwiseOr = 7,
  kBitwiseXor = 8,
};
inline constexpr int kElementTypes = 8;
inline constexpr int kReduceOps = 9;

size_t ElementBytes(ElementType type);
std::string_view ElementName(ElementType type);  // "f32"
std::string_view ReduceName(ReduceOp op);        // "sum"

// Whether this reduction exists for these elements.
bool IsDefined(ElementType type, ReduceOp op);
// Fails with InvalidArgument if it does not exist, or if kPremultipliedSum cannot
// multiply by `factor`.
absl::Status CheckReduction(ElementType type, ReduceOp op, double factor);

// Whether the bits of a result depend on the order in which values are combined: true for
// sums, averages and products of floating point.
bool OrderMatters(ElementType type, ReduceOp op);
// Whether a partial result is rounded when it is stored: true for BF16 and FP16, which
// are combined in FP32.
bool RoundsPartials(ElementType type);

struct Combination {
  ElementType type = ElementType::kF32;
  ReduceOp op = ReduceOp::kSum;
  // Number of ranks by which this call divides an average; 0: a later call divides.
  int divide_by = 0;
};

// values[i] *= factor. BF16 and FP16 are rounded to FP32, and then to their type;
// integers wrap around.
// REQUIRES: for integers, a whole factor of magnitude at most 2^53.
void Scale(ElementType type, double factor, size_t count, std::byte* values);

// out[i] = first[i] op others[0][i] op others[1][i] ..., from left to right. REQUIRES:
// IsDefined. `out` may be `first` or one of the others; otherwise nothing overlaps. All
// point to `count` elements.
void Combine(const Combination& combination, size_t count, const std::byte* first,
             std::span<const std::byte* const> others, std::byte* out);

}  // namespace syncline::collective
