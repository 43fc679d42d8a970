// Selection by magnitude. The bits of a float without its sign are an integer that orders
// magnitudes exactly, denormals included, so everything here compares integers.
#pragma once

#include <bit>
#include <cstdint>
#include <span>

#include "comm/codec/sparse/index_list.h"

namespace syncline {

inline uint32_t MagnitudeBits(float value) {
  return std::bit_cast<uint32_t>(value) & 0x7fffffffu;
}

// The smallest magnitude above zero: everything but zeros.
inline constexpr uint32_t kSmallestMagnitude = 1;

// Writes the positions of all values whose MagnitudeBits are at least `floor`.
void FindAtLeast(std::span<const float> values, uint32_t floor, IndexList& found);

// The k values of largest magnitude, fewer if the others are zero; of equal magnitudes
// those at lower positions. Returns the MagnitudeBits of the smallest one taken, 0 if
// none. REQUIRES: k >= 1 or no values.
uint32_t FindLargest(std::span<const float> values, uint32_t k, IndexList& found);

// An estimate of the k-th largest MagnitudeBits from every stride-th value: about as many
// values as `rank` of the sample lie above it.
uint32_t SampledMagnitude(std::span<const float> values, uint32_t stride, uint32_t rank);

}  // namespace syncline
