// FP32: values are sent unchanged, 4 bytes each.
#pragma once

#include <memory>

#include "comm/codec/codec.h"

namespace syncline {

std::unique_ptr<Codec> MakeFp32Codec();

}  // namespace syncline
