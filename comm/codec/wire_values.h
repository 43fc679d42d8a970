// Access to numbers in received bytes: at any address, little-endian.
//
// Frames start on 64 bytes, but a codec must not crash on a view that does not. On x86-64
// an unaligned vector load from an aligned address costs nothing, so one path serves
// both.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace syncline {

static_assert(std::endian::native == std::endian::little,
              "the wire format is little-endian");

using WireFloat [[gnu::may_alias, gnu::aligned(1)]] = float;
using WireU16 [[gnu::may_alias, gnu::aligned(1)]] = uint16_t;

inline const WireFloat* AsFloats(const std::byte* bytes) {
  return reinterpret_cast<const WireFloat*>(bytes);
}
inline const WireU16* AsU16s(const std::byte* bytes) {
  return reinterpret_cast<const WireU16*>(bytes);
}
inline WireU16* AsU16s(std::byte* bytes) { return reinterpret_cast<WireU16*>(bytes); }

}  // namespace syncline
