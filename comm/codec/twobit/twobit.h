// Two bits for each value: its sign, and whether it is large. Each of the four bins of a
// block decodes to the mean of its values, so the sum of each bin is kept.
//
//   const std::unique_ptr<Codec> codec = MakeTwoBitCodec({.block_log2 = 12});
//
// The codec is made for the values that a selector sends, as in SparseLoCo (Sarfi et al.
// 2025, arXiv 2508.15706, whose code book also holds the means of four bins). None of
// those is near zero, so few distinct sizes suffice. A value is large if it is above 1.25
// times the mean magnitude of its block. For the largest values of a Gaussian this is
// close to the threshold that Lloyd's algorithm finds.
//
// Little-endian layout of an encoding:
//
//   offset  bytes
//   0       1                 log2 of the elements of a block, 8 to 16
//   1       3                 zero
//   4       16 x blocks       FP32 means of the bins 0 to 3 of each block, finite
//           rest              two bits an element, the first in the lowest bits of the
//                             first byte: 1 negative, 2 large; unused bits of the last
//                             byte are zero
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
