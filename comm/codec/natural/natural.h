// Natural compression: a sign and a power of two, one byte for each value, 4 times
// smaller than FP32 (Horvath et al. 2019, arXiv 1905.10988).
//
//   const std::unique_ptr<Codec> codec = MakeNaturalCodec();
//
// A value is rounded at random to the power of two below or above it, so that the mean is
// the value itself. Unlike small integers, this keeps the relative error the same for
// values of any size.
#pragma once

#include <memory>

#include "comm/codec/codec.h"

namespace syncline {

std::unique_ptr<Codec> MakeNaturalCodec();

}  // namespace syncline
