// Selection by magnitude. The bits of a float without its sign form an integer that
// orders magnitudes exactly, denormals included. So the code compares integers.
#pragma once

#include <bit>
#include <cstdint>
#include <span>

#include "comm/codec/sparse/index_list.h"

namespace syncline {

inline uint32_t MagnitudeBits(float value) {
  return std::bit_cast<uint32_t>(value) & 0x7fffffffu;
}

// The smallest magnitude above zero. As a floor it excludes only zeros.
inline constexpr uint32_t kSmallestMagnitude = 1;

// Writes the positions of all values whose MagnitudeBits are at least `floor`.
void FindAtLeast(std::span<const float> values, uint32_t floor, IndexList& found);

// Finds the k values of largest magnitude, or fewer if the others are zero. Among equal
// magnitudes it takes lower positions first. Returns the MagnitudeBits of the smallest
// one taken, 0 if none. REQUIRES: k >= 1 or no values.
uint32_t FindLargest(std::span<const float> values, uint32_t k, IndexList& found);

// Returns an estimate of the k-th largest MagnitudeBits from a sample of every stride-th
// value: the value of the given rank in the sample.
uint32_t SampledMagnitude(std::span<const float> values, uint32_t stride, uint32_t rank);

}  // namespace syncline
