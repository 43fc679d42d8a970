// Element types on the wire, and the scalar rules of BF16 and FP16 that every kernel must
// reproduce.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace syncline {

enum class DType : uint8_t { kF32 = 1, kBf16 = 2, kF16 = 3 };

constexpr size_t DTypeBytes(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }

// Rounds to nearest even. A NaN stays a quiet NaN of the same sign (a plain rounding add
// would turn some NaNs into infinity). This is the scalar reference for all BF16 kernels,
// CPU and CUDA.
inline uint16_t Bf16FromFloat(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u)
    return static_cast<uint16_t>((bits >> 16) | 0x0040u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// The largest float that rounds to a finite BF16.
inline constexpr float kLargestToBf16 = 0x1.fefffep127f;

inline float FloatFromBf16(uint16_t value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value) << 16);
}

// Rounds away from zero with the probability of the part that truncation would lose. The
// mean of many roundings is therefore `value` itself. `random` is uniform in its lower 16
// bits. Finite values stay finite: above the largest BF16 they are truncated.
inline uint16_t StochasticBf16FromFloat(float value, uint32_t random) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t rounded = (bits + (random & 0xffffu)) >> 16;
  const uint32_t truncated = bits >> 16;
  const uint32_t finite = magnitude >= 0x7f7f0000u ? truncated : rounded;
  return static_cast<uint16_t>(magnitude > 0x7f800000u ? truncated | 0x0040u : finite);
}

// Computes `condition ? a : b` with masks. Otherwise GCC moves a float operation that
// only one side needs behind a branch, where it is not vectorised before AVX-512.
inline uint32_t Select(bool condition, uint32_t a, uint32_t b) {
  const uint32_t mask = 0u - static_cast<uint32_t>(condition);
  return (a & mask) | (b & ~mask);
}

// Rounds to IEEE 754 binary16, to nearest even. Denormals are kept, 65520 and more
// becomes infinity, and a NaN stays a quiet NaN with its sign and upper payload. There
// are no branches, so that loops over it vectorise, and no arithmetic on FP32 denormals,
// so that a CPU that flushes them gives the same bits.
inline uint16_t F16FromFloat(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t sign = (bits >> 16) & 0x8000u;
  // The exponent's bias changes from 127 to 15. A carry out of the mantissa needs no
  // special handling.
  const uint32_t normal =
      (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  // The last bit of 0.5f is worth 2^-24, the smallest half, so the addition rounds.
  const uint32_t denormal =
      std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  const uint32_t finite = Select(magnitude < 0x38800000u, denormal, normal);
  const uint32_t number = Select(magnitude >= 0x47800000u, 0x7c00u, finite);
  const uint32_t nan = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  return static_cast<uint16_t>(sign | Select(magnitude > 0x7f800000u, nan, number));
}

// Converts exactly; a NaN stays a NaN.
inline float FloatFromF16(uint16_t value) {
  const uint32_t sign = (value & 0x8000u) << 16;
  const uint32_t magnitude = (value & 0x7fffu) << 13;
  const uint32_t normal = magnitude + (112u << 23);
  // With the exponent of 2^-14 added, the subtraction normalises the mantissa.
  const uint32_t denormal =
      std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude + (113u << 23)) - 0x1p-14f);
  const uint32_t finite = Select(magnitude < (1u << 23), denormal, normal);
  const uint32_t number =
      Select(magnitude >= (31u << 23), magnitude + (224u << 23), finite);
  return std::bit_cast<float>(sign | number);
}

}  // namespace syncline
