#include "comm/base/crc32c.h"

#include <array>
#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace syncline {
namespace {

// The polynomial, bit-reversed: bit i of a register stands for x^(31-i).
constexpr uint32_t kPolynomial = 0x82f63b78u;

constexpr uint32_t TimesX(uint32_t value) {
  return (value >> 1) ^ ((value & 1) != 0 ? kPolynomial : 0);
}

uint64_t LoadLittleEndian64(const std::byte* bytes) {
  static_assert(std::endian::native == std::endian::little);
  uint64_t value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

// kSlices[k][b] is the register after byte b and k zero bytes ("slicing by 8").
using SliceTables = std::array<std::array<uint32_t, 256>, 8>;
constexpr SliceTables MakeSliceTables() {
  SliceTables tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = TimesX(value);
    tables[0][byte] = value;
  }
  for (size_t k = 1; k < tables.size(); ++k) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t before = tables[k - 1][byte];
      tables[k][byte] = (before >> 8) ^ tables[0][before & 0xff];
    }
  }
  return tables;
}
constexpr SliceTables kSlices = MakeSliceTables();

uint32_t ExtendPortable(uint32_t state, const std::byte* bytes, size_t size) {
  for (; size >= 8; bytes += 8, size -= 8) {
    const uint64_t word = LoadLittleEndian64(bytes) ^ state;
    state = 0;
    for (size_t k = 0; k < 8; ++k) state ^= kSlices[7 - k][(word >> (8 * k)) & 0xff];
  }
  for (; size > 0; ++bytes, --size) {
    state = (state >> 8) ^ kSlices[0][(state ^ static_cast<uint32_t>(*bytes)) & 0xff];
  }
  return state;
}

#if defined(__x86_64__)

constexpr uint32_t PowerOfX(size_t exponent) {
  uint32_t value = 0x80000000u;  // x^0
  for (size_t i = 0; i < exponent; ++i) value = TimesX(value);
  return value;
}

// Computes state * x^(8 * kZeroBytes): the state after `kZeroBytes` zero bytes. The
// exponent has -33 for two reasons: the carry-less product of two bit-reversed registers
// lacks one factor x, and the crc32 instruction multiplies by x^32 while it reduces.
template <size_t kZeroBytes>
__attribute__((target("sse4.2,pclmul"))) inline uint32_t SkipZeros(uint64_t state) {
  constexpr uint32_t kFactor = PowerOfX(8 * kZeroBytes - 33);
  const __m128i product =
      _mm_clmulepi64_si128(_mm_cvtsi64_si128(static_cast<int64_t>(state)),
                           _mm_cvtsi64_si128(static_cast<int64_t>(kFactor)), 0);
  return static_cast<uint32_t>(
      _mm_crc32_u64(0, static_cast<uint64_t>(_mm_cvtsi128_si64(product))));
}

// Processes 3 * kStreamBytes at a time, as long as there are enough bytes.
template <size_t kStreamBytes>
__attribute__((target("sse4.2,pclmul"))) inline uint64_t ExtendThreeStreams(
    uint64_t state, ByteView& bytes) {
  while (bytes.size() >= 3 * kStreamBytes) {
    const std::byte* in = bytes.data();
    uint64_t second = 0;
    uint64_t third = 0;
    for (size_t i = 0; i < kStreamBytes; i += 8) {
      state = _mm_crc32_u64(state, LoadLittleEndian64(in + i));
      second = _mm_crc32_u64(second, LoadLittleEndian64(in + kStreamBytes + i));
      third = _mm_crc32_u64(third, LoadLittleEndian64(in + 2 * kStreamBytes + i));
    }
    state = SkipZeros<2 * kStreamBytes>(state) ^ SkipZeros<kStreamBytes>(second) ^ third;
    bytes = bytes.subspan(3 * kStreamBytes);
  }
  return state;
}

__attribute__((target("sse4.2,pclmul"))) uint32_t ExtendSse42(uint32_t state,
                                                              ByteView bytes) {
  // Long streams for most of a tile, short ones for the rest.
  uint64_t wide = ExtendThreeStreams<4096>(state, bytes);
  wide = ExtendThreeStreams<256>(wide, bytes);
  const std::byte* in = bytes.data();
  size_t size = bytes.size();
  for (; size >= 8; in += 8, size -= 8)
    wide = _mm_crc32_u64(wide, LoadLittleEndian64(in));
  uint32_t narrow = static_cast<uint32_t>(wide);
  for (; size > 0; ++in, --size) {
    narrow = _mm_crc32_u8(narrow, static_cast<uint8_t>(*in));
  }
  return narrow;
}

#endif  // __x86_64__

}  // namespace

uint32_t Crc32cPortable(ByteView bytes, uint32_t crc) {
  return ~ExtendPortable(~crc, bytes.data(), bytes.size());
}

uint32_t Crc32c(ByteView bytes, uint32_t crc) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul")) {
    return ~ExtendSse42(~crc, bytes);
  }
#endif
  return Crc32cPortable(bytes, crc);
}

}  // namespace syncline
