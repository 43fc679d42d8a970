// Index coders: ascending positions inside a tile as bytes.
//
//   const IndexCoding coding = ChooseIndexCoding(positions, n);
//   WriteIndices(positions, coding, out.first(coding.bytes));
//   ...
//   SYNCLINE_RETURN_IF_ERROR(ReadIndices(bytes, {.coding = coding, .n = n}, positions));
//
// Bits per position at a density of 1 %: uint16_t 16, bitmap 100, Rice 8.1 (the entropy
// is 8.1). Reading believes nothing: what it accepts, Write could have written.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "comm/base/buffer.h"
#include "comm/codec/sparse/index_list.h"

namespace syncline {

// Part of the wire format: never reused, never renumbered.
enum class IndexCoder : uint8_t {
  kEvery = 0,   // all n positions; no bytes
  kU16 = 1,     // one little-endian uint16_t each
  kBitmap = 2,  // bit i % 8 of byte i / 8, lowest first; n bits
  kRice = 3,    // gaps: (gap >> b) zeros, a one, then the b lower bits of the gap
  kSeed = 4,    // RandomPositions of the uint64_t that is sent
  kBlocks = 5,  // all positions of some blocks of 256; bitmap of the blocks
};

std::string_view IndexCoderName(IndexCoder coder);

inline constexpr uint8_t kMaxRiceBits = 15;

struct IndexCoding {
  IndexCoder coder = IndexCoder::kEvery;
  uint8_t rice_bits = 0;  // b of kRice, otherwise 0
  uint32_t bytes = 0;
};

// The smallest of kEvery, kU16, kBitmap and kRice for these positions: never more bytes
// than the bitmap. REQUIRES: ascending, below n.
IndexCoding ChooseIndexCoding(std::span<const uint16_t> positions, uint32_t n);
// kBlocks for a tile of n elements.
IndexCoding BlockCoding(uint32_t n);
// kSeed.
inline constexpr IndexCoding kSeedCoding = {.coder = IndexCoder::kSeed,
                                            .bytes = sizeof(uint64_t)};

// Writes all of `out`, coding.bytes long. Not for kSeed, whose bytes are the seed itself.
void WriteIndices(std::span<const uint16_t> positions, const IndexCoding& coding,
                  MutableByteView out);

// What the reader was told: the coding, and how many positions below what.
struct IndexClaim {
  IndexCoding coding = {};
  uint32_t count = 0;
  uint32_t n = 0;
};

// Reads into `positions`, which has room for claim.count. InvalidArgument unless `bytes`
// are exactly that many ascending positions below n, and every padding bit is zero.
absl::Status ReadIndices(ByteView bytes, const IndexClaim& claim, IndexList& positions);

}  // namespace syncline
