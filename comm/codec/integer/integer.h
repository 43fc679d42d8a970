// Small integers: value = q * step, with one FP32 step for each block of values. 4, 8 or
// 16 times smaller than FP32.
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
  // Up or down by chance, so that the mean is the value itself.
  kStochastic,
};

// What the largest integer stands for.
enum class IntegerRange {
  // The largest magnitude of the block.
  kAbsmax,
  // The block's Euclidean norm (QSGD): most values become 0. For stochastic rounding;
  // nearest may lose all.
  kL2,
};

struct IntegerOptions {
  uint32_t bits = 8;         // 8, 4 or 2: |q| <= 127, 7 or 1
  uint32_t block_log2 = 10;  // 8 to 16: blocks of 256 to 65,536 elements
  IntegerRounding rounding = IntegerRounding::kNearest;
  IntegerRange range = IntegerRange::kAbsmax;
  // Larger values are cut to so many root mean squares of their block, and the largest
  // integer stands for no more (TernGrad: 2.5; Wen et al. 2017, arXiv 1705.07878, section
  // 4, where it is the standard deviation: the same for a mean near zero, and a block of
  // equal values is not cut to nothing). 0: none are; at least 1 otherwise, for kAbsmax
  // and kStochastic.
  float clip = 0;
};

std::unique_ptr<Codec> MakeIntegerCodec(const IntegerOptions& options);

}  // namespace syncline
