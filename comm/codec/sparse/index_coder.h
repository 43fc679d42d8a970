// Index coders: they write ascending positions inside a tile as bytes, and read them
// back.
//
//   const IndexCoding coding = ChooseIndexCoding(positions, n);
//   WriteIndices(positions, coding, out.first(coding.bytes));
//   ...
//   SYNCLINE_RETURN_IF_ERROR(
//       ReadIndices(bytes, {.coding = coding, .count = count, .n = n}, positions));
//
// Bits per position at a density of 1 %: uint16_t 16, bitmap 100, Rice 8.1 (the entropy
// is 8.1). The reader trusts nothing: it accepts only what a writer could have written.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "comm/base/buffer.h"
#include "comm/codec/sparse/index_list.h"

namespace syncline {

// Part of the wire format; the numbers must never change.
enum class IndexCoder : uint8_t {
  kEvery = 0,   // all n positions; no bytes
  kU16 = 1,     // one little-endian uint16_t each
  kBitmap = 2,  // bit i % 8 of byte i / 8, lowest first; n bits
  kRice = 3,    // gaps: (gap >> b) zeros, a one, then the b lower bits of the gap
  kSeed = 4,    // the uint64_t seed of RandomPositions
  kBlocks = 5,  // all positions of some blocks of 256; bitmap of the blocks
};

std::string_view IndexCoderName(IndexCoder coder);

inline constexpr uint8_t kMaxRiceBits = 15;

struct IndexCoding {
  IndexCoder coder = IndexCoder::kEvery;
  uint8_t rice_bits = 0;  // b of kRice, otherwise 0
  uint32_t bytes = 0;
};

// Returns the smallest of kEvery, kU16, kBitmap and kRice for these positions. It is
// never longer than the bitmap. REQUIRES: ascending positions below n.
IndexCoding ChooseIndexCoding(std::span<const uint16_t> positions, uint32_t n);
// Returns kBlocks for a tile of n elements.
IndexCoding BlockCoding(uint32_t n);
// kSeed. Its bytes are the seed itself.
inline constexpr IndexCoding kSeedCoding = {.coder = IndexCoder::kSeed,
                                            .bytes = sizeof(uint64_t)};

// Writes all of `out`, which is coding.bytes long. REQUIRES: the coder is not kSeed.
void WriteIndices(std::span<const uint16_t> positions, const IndexCoding& coding,
                  MutableByteView out);

// What the header claims: the coding, and that `count` positions below `n` follow.
struct IndexClaim {
  IndexCoding coding = {};
  uint32_t count = 0;
  uint32_t n = 0;
};

// Reads into `positions`, which has room for claim.count. Fails with InvalidArgument
// unless `bytes` encodes exactly that many ascending positions below n, with all padding
// bits zero.
absl::Status ReadIndices(ByteView bytes, const IndexClaim& claim, IndexList& positions);

}  // namespace syncline
