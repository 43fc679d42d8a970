// BF16: values rounded to nearest even, 2 bytes each. Halves the bytes of FP32 and keeps
// its range; 8 bits of precision are left.
#pragma once

#include <memory>

#include "comm/codec/codec.h"

namespace syncline {

std::unique_ptr<Codec> MakeBf16Codec();

// The same bytes, but rounded up or down by chance so that the mean is the value itself:
// E[decode(encode(x))] = x. The chance is that of the EncodeContext (comm/base/random.h).
std::unique_ptr<Codec> MakeStochasticBf16Codec();

}  // namespace syncline
