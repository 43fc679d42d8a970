// FP16: values rounded to IEEE halves, 2 bytes each. 11 bits of precision, but a range of
// 6e-8 to 65504 only: gradients want loss scaling, which relies on what is too large
// arriving as infinity.
#pragma once

#include <memory>

#include "comm/codec/codec.h"

namespace syncline {

std::unique_ptr<Codec> MakeFp16Codec();

}  // namespace syncline
