// Signs: one bit for each value and one FP32 scale for each block of values, 31 times
// smaller than FP32.
//
//   const std::unique_ptr<Codec> codec = MakeSignCodec({.block_log2 = 12});
//
// A value decodes to plus or minus the scale of its block, so most of it is error. Keep
// the residual and add it to the next gradient (comm/compression/memory).
#pragma once

#include <cstdint>
#include <memory>

#include "comm/codec/codec.h"

namespace syncline {

enum class SignScale {
  // The mean magnitude of the block. It is the scale with the least error for given
  // signs, and always a contraction. A root mean square is not: its error on sparse or
  // heavy-tailed tensors exceeds the tensor itself.
  kMean,
  // 1: signSGD, where the learning rate alone sets the length of a step, and the sum over
  // workers is a majority vote.
  kOne,
};

struct SignOptions {
  uint32_t block_log2 = 12;  // 8 to 16: blocks of 256 to 65,536 elements
  SignScale scale = SignScale::kMean;
};

std::unique_ptr<Codec> MakeSignCodec(const SignOptions& options);

}  // namespace syncline
