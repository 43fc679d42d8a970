// Packs codes of 8, 4 or 2 bits. Arithmetic uses one byte per code; the wire has them
// packed, the first code in the lowest bits.
//
// These functions are part of kernels (comm/base/isa.h): plain loops over words of codes,
// which compile for every SIMD unit. Include the file only in sources that are built with
// -O3.
#pragma once

#include <cstddef>
#include <cstdint>

#include "comm/base/isa.h"
#include "comm/codec/wire_values.h"

namespace syncline {

using WireU32 [[gnu::may_alias, gnu::aligned(1)]] = uint32_t;

template <uint32_t kBits>
struct Packing;

template <>
struct Packing<8> {
  SYNCLINE_KERNEL void Pack(const uint8_t* codes, size_t n, std::byte* out) {
    __builtin_memcpy(out, codes, n);
  }
  SYNCLINE_KERNEL void Unpack(const std::byte* bytes, size_t n, uint8_t* codes) {
    __builtin_memcpy(codes, bytes, n);
  }
};

// Both functions read and write whole bytes: `codes` has room for n rounded up to an even
// number, and codes beyond n are zero when packed.
template <>
struct Packing<4> {
  SYNCLINE_KERNEL void Pack(const uint8_t* codes, size_t n, std::byte* out) {
    const auto* pairs = reinterpret_cast<const WireU16*>(codes);
    for (size_t i = 0; i < (n + 1) / 2; ++i) {
      const uint16_t pair = pairs[i];
      out[i] = static_cast<std::byte>((pair & 0xf) | (pair >> 4 & 0xf0));
    }
  }
  SYNCLINE_KERNEL void Unpack(const std::byte* bytes, size_t n, uint8_t* codes) {
    auto* pairs = reinterpret_cast<WireU16*>(codes);
    for (size_t i = 0; i < (n + 1) / 2; ++i) {
      const auto both = static_cast<uint16_t>(bytes[i]);
      pairs[i] = static_cast<uint16_t>((both | both << 4) & 0x0f0f);
    }
  }
};

// The same, with n rounded up to a multiple of four.
template <>
struct Packing<2> {
  SYNCLINE_KERNEL void Pack(const uint8_t* codes, size_t n, std::byte* out) {
    const auto* fours = reinterpret_cast<const WireU32*>(codes);
    for (size_t i = 0; i < (n + 3) / 4; ++i) {
      const uint32_t four = fours[i];
      out[i] = static_cast<std::byte>((four & 0x3) | (four >> 6 & 0xc) |
                                      (four >> 12 & 0x30) | (four >> 18 & 0xc0));
    }
  }
  SYNCLINE_KERNEL void Unpack(const std::byte* bytes, size_t n, uint8_t* codes) {
    auto* fours = reinterpret_cast<WireU32*>(codes);
    for (size_t i = 0; i < (n + 3) / 4; ++i) {
      const auto four = static_cast<uint32_t>(bytes[i]);
      fours[i] = (four | four << 6 | four << 12 | four << 18) & 0x03030303;
    }
  }
};

}  // namespace syncline
