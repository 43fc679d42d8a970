// BF16: values rounded to nearest even, 2 bytes each. Halves the bytes of FP32 and keeps
// its range; 8 bits of precision are left.
#pragma once

#include <memory>

#include "comm/codec/codec.h"

namespace syncline {

std::unique_ptr<Codec> MakeBf16Codec();

}  // namespace syncline
