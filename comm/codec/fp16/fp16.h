// FP16: values rounded to IEEE half precision, 2 bytes each. It has 11 bits of precision,
// but only a range of 6e-8 to 65504. Gradients need loss scaling, which relies on too
// large values arriving as infinity.
#pragma once

#include <memory>

#include "comm/codec/codec.h"

namespace syncline {

std::unique_ptr<Codec> MakeFp16Codec();

}  // namespace syncline
