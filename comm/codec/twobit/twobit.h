// Two bits for each value: its sign, and whether it is large. Each of the four bins of a
// block decodes to the mean of what is in it, so that no sum of a bin is lost.
//
//   const std::unique_ptr<Codec> codec = MakeTwoBitCodec({.block_log2 = 12});
//
// Made for the values that a selector sends, as SparseLoCo does (Sarfi et al. 2025, arXiv
// 2508.15706, whose code book has the means of four bins, too): there are none near zero,
// and few sizes say most. A value is large if it is above 1.25 times the mean magnitude
// of its block, which for the largest values of a Gaussian is about where Lloyd's
// algorithm would cut.
//
// Little-endian layout of an encoding:
//
//   offset  bytes
//   0       1                 log2 of the elements of a block, 8 to 16
//   1       3                 zero
//   4       16 x blocks       FP32 means of the bins 0 to 3 of each block, finite
//           rest              two bits an element, the first in the lowest bits of the
//                             first byte: 1 negative, 2 large; what the last byte has too
//                             many is zero
#pragma once

#include <cstdint>
#include <memory>

#include "comm/codec/codec.h"

namespace syncline {

struct TwoBitOptions {
  uint32_t block_log2 = 12;  // 2^n values share four means; 8 to 16
};

std::unique_ptr<Codec> MakeTwoBitCodec(const TwoBitOptions& options);

}  // namespace syncline
