// The largest magnitude of many values. It is part of kernels (comm/base/isa.h); include
// it only in sources that are built with -O3.
#pragma once

#include <cstddef>
#include <cstdint>

#include "comm/base/isa.h"

namespace syncline {

// Returns 0 for no values. REQUIRES: no NaN.
SYNCLINE_KERNEL float MaxMagnitude(const float* values, size_t n) {
  // Magnitudes sort like their bits. The compiler vectorises a maximum of integers, not
  // of floats.
  uint32_t max = 0;
  for (size_t i = 0; i < n; ++i) {
    const uint32_t magnitude = __builtin_bit_cast(uint32_t, values[i]) & 0x7fffffff;
    max = magnitude > max ? magnitude : max;
  }
  return __builtin_bit_cast(float, max);
}

}  // namespace syncline
