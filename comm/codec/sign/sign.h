// Signs: one bit for each value and one FP32 scale for each block of them. 31 times
// smaller than FP32.
//
//   const std::unique_ptr<Codec> codec = MakeSignCodec({.block_log2 = 12});
//
// A value decodes to plus or minus the scale of its block, so nearly all of it is error:
// keep the residual and add it to the next gradient (memory/).
#pragma once

#include <cstdint>
#include <memory>

#include "comm/codec/codec.h"

namespace syncline {

enum class SignScale {
  // The mean magnitude of the block: the scale with the least error for given signs, and
  // always a contraction. A root mean square is not one: on sparse or heavy-tailed
  // tensors it loses more than it was given.
  kMean,
  // 1: signSGD, where the learning rate alone is the length of a step, and the sum of
  // the workers is their vote.
  kOne,
};

struct SignOptions {
  uint32_t block_log2 = 12;  // 8 to 16: blocks of 256 to 65,536 elements
  SignScale scale = SignScale::kMean;
};

std::unique_ptr<Codec> MakeSignCodec(const SignOptions& options);

}  // namespace syncline
