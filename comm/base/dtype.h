// Element types on the wire, and the scalar rules of BF16 that every kernel must
// reproduce.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace syncline {

enum class DType : uint8_t { kF32 = 1, kBf16 = 2 };

constexpr size_t DTypeBytes(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }

// Round to nearest even; a NaN stays a quiet NaN of the same sign (a plain rounding add
// would turn some NaNs into infinity). The scalar reference for all BF16 kernels, CPU and
// CUDA.
inline uint16_t Bf16FromFloat(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u)
    return static_cast<uint16_t>((bits >> 16) | 0x0040u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline float FloatFromBf16(uint16_t value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value) << 16);
}

}  // namespace syncline
