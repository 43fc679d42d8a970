// A rotation before any quantizer: y = H D x / sqrt(m), with random signs D and the
// Walsh-Hadamard transform H of chunks of m values. It spreads large values over their
// chunk, so that the scale of a block fits all of its values (Suresh et al. 2017, arXiv
// 1611.00429).
//
//   const auto int4 = MakeRotatedCodec(MakeIntegerCodec({.bits = 4}));
//
// Little-endian layout of an encoding:
//
//   offset  bytes
//   0       4      seed of the signs
//   4       2      CodecId of the inner codec
//   6       1      log2 of the longest chunk: 12; 0 if nothing is rotated
//   7       1      zero
//   8       rest   the rotated tile, as the inner codec encodes it
//
// Chunks have 4,096 elements. The rest of a tile has chunks of 2,048, 1,024, ... 1, one
// for each set bit of its length. Nothing is rotated if a value is 2^96 or more, since
// sums might be infinite.
#pragma once

#include <memory>

#include "comm/codec/codec.h"

namespace syncline {

// REQUIRES: `inner` takes whole tiles and finite values, and keeps no memory.
std::unique_ptr<Codec> MakeRotatedCodec(std::shared_ptr<const Codec> inner);

}  // namespace syncline
