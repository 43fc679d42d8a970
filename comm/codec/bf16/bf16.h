// BF16: values rounded to nearest even, 2 bytes each. It halves the bytes of FP32, keeps
// its range and has 8 bits of precision.
#pragma once

#include <memory>

#include "comm/codec/codec.h"

namespace syncline {

std::unique_ptr<Codec> MakeBf16Codec();

// Produces the same format, but rounds up or down at random so that the mean is the value
// itself: E[decode(encode(x))] = x. The random bits come from the EncodeContext
// (comm/base/random.h).
std::unique_ptr<Codec> MakeStochasticBf16Codec();

}  // namespace syncline
