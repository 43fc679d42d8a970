// Small integers: value = q * step, with one FP32 step for each block of values. The
// encoding is 4, 8 or 16 times smaller than FP32.
//
//   const auto int8 = MakeIntegerCodec({.bits = 8});
//   const auto qsgd = MakeIntegerCodec({.bits = 8,
//                                       .rounding = IntegerRounding::kStochastic,
//                                       .range = IntegerRange::kL2});
//   const auto terngrad = MakeIntegerCodec({.bits = 2,
//                                           .rounding = IntegerRounding::kStochastic,
//                                           .clip = 2.5f});
#pragma once

#include <cstdint>
#include <memory>

#include "comm/codec/codec.h"

namespace syncline {

enum class IntegerRounding {
  // To the nearest multiple of the step, ties to even.
  kNearest,
  // Up or down at random, so that the mean is the value itself.
  kStochastic,
};

// The value that the largest integer represents.
enum class IntegerRange {
  // The largest magnitude of the block.
  kAbsmax,
  // The block's Euclidean norm (QSGD): most values become 0. Use it with stochastic
  // rounding; nearest rounding may lose everything.
  kL2,
};

struct IntegerOptions {
  uint32_t bits = 8;         // 8, 4 or 2: |q| <= 127, 7 or 1
  uint32_t block_log2 = 10;  // 8 to 16: blocks of 256 to 65,536 elements
  IntegerRounding rounding = IntegerRounding::kNearest;
  IntegerRange range = IntegerRange::kAbsmax;
  // Larger values are clipped to this many root mean squares of their block, and the
  // largest integer represents no more than that. 0: no clipping. Otherwise it is at
  // least 1 and needs kAbsmax and kStochastic. TernGrad clips at 2.5 (Wen et al. 2017,
  // arXiv 1705.07878, section 4), but in standard deviations. These are the same for a
  // mean near zero, and root mean squares do not clip a block of equal values to nothing.
  float clip = 0;
};

std::unique_ptr<Codec> MakeIntegerCodec(const IntegerOptions& options);

}  // namespace syncline
