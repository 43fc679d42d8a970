#include "comm/codec/sparse/index_coder.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "comm/base/check.h"
#include "comm/codec/sparse/bit_stream.h"
#include "comm/codec/sparse/selector.h"
#include "comm/codec/wire_values.h"

namespace syncline {
namespace {

size_t BytesOfBits(size_t bits) { return (bits + 7) / 8; }
size_t BlocksOf(uint32_t n) { return (n + kSelectorBlock - 1) / kSelectorBlock; }

// Calls `use` with the number of zeros before each one of the bitmap.
template <typename Use>
void ForEachGap(std::span<const uint16_t> positions, Use use) {
  uint32_t next = 0;
  for (const uint16_t position : positions) {
    use(position - next);
    next = position + 1u;
  }
}

size_t RiceBytes(std::span<const uint16_t> positions, uint32_t rice_bits) {
  size_t bits = positions.size() * (size_t{rice_bits} + 1);
  ForEachGap(positions, [&](uint32_t gap) { bits += gap >> rice_bits; });
  return BytesOfBits(bits);
}

// Gaps of random positions are geometric, for which b = log2(ln 2 * mean gap) is best
// (Kiely, JPL IPN 42-159, 2004). The neighbouring values are tried too, for other gaps.
IndexCoding BestRice(std::span<const uint16_t> positions) {
  const double mean =
      positions.empty() ? 0 : (positions.back() + 1.0) / double(positions.size()) - 1;
  const double bits = std::round(std::log2(std::max(1.0, mean * 0.6931)));
  const auto guess = static_cast<uint32_t>(bits);
  IndexCoding best{.coder = IndexCoder::kRice, .bytes = UINT32_MAX};
  const uint32_t last = std::min<uint32_t>(guess + 1, kMaxRiceBits);
  for (uint32_t b = guess == 0 ? 0 : guess - 1; b <= last; ++b) {
    const auto bytes = static_cast<uint32_t>(RiceBytes(positions, b));
    if (bytes < best.bytes) {
      best.rice_bits = static_cast<uint8_t>(b);
      best.bytes = bytes;
    }
  }
  return best;
}

void WriteRice(std::span<const uint16_t> positions, uint32_t rice_bits,
               MutableByteView out) {
  BitWriter writer(out);
  const uint32_t low = (1u << rice_bits) - 1;
  ForEachGap(positions, [&](uint32_t gap) {
    writer.WriteZeros(gap >> rice_bits);
    writer.Write(1u | (gap & low) << 1, rice_bits + 1);
  });
  SYNCLINE_CHECK(writer.Finish() == out.size());
}

void SetBit(MutableByteView out, uint32_t i) {
  out[i / 8] |= static_cast<std::byte>(1u << (i % 8));
}

absl::Status Damaged(const IndexClaim& claim, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(
      "indices of a sparse tile (", std::string(IndexCoderName(claim.coding.coder)), ", ",
      claim.count, " of ", claim.n, "): ", what));
}

absl::Status ReadU16(ByteView bytes, const IndexClaim& claim, IndexList& positions) {
  const WireU16* const entries = AsU16s(bytes.data());
  uint32_t next = 0;
  bool ascending = true;
  uint16_t* const out = positions.data();
  for (uint32_t i = 0; i < claim.count; ++i) {
    const uint16_t entry = entries[i];
    ascending &= entry >= next;
    next = entry + 1u;
    out[i] = entry;
  }
  if (!ascending) return Damaged(claim, "not ascending");
  if (next > claim.n) return Damaged(claim, "beyond the tile");
  positions.set_count(claim.count);
  return absl::OkStatus();
}

// Reads the positions of the set bits among the first `bits`. Fails with InvalidArgument
// if there are more than claim.count, or one in the padding.
absl::Status ReadBits(ByteView bytes, const IndexClaim& claim, uint32_t bits,
                      IndexList& set) {
  uint32_t count = 0;
  uint16_t* const out = set.data();
  for (uint32_t byte = 0; byte < bytes.size(); byte += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + byte,
                std::min<size_t>(sizeof(word), bytes.size() - byte));
    if (count + static_cast<uint32_t>(std::popcount(word)) > claim.count) {
      return Damaged(claim, "more bits set than positions");
    }
    for (; word != 0; word &= word - 1) {
      const uint32_t bit = 8 * byte + static_cast<uint32_t>(std::countr_zero(word));
      if (bit >= bits) return Damaged(claim, "padding is not zero");
      out[count++] = static_cast<uint16_t>(bit);
    }
  }
  set.set_count(count);
  return absl::OkStatus();
}

absl::Status ReadBitmap(ByteView bytes, const IndexClaim& claim, IndexList& positions) {
  if (absl::Status read = ReadBits(bytes, claim, claim.n, positions); !read.ok()) {
    return read;
  }
  if (positions.count() != claim.count) return Damaged(claim, "too few bits set");
  return absl::OkStatus();
}

absl::Status ReadRice(ByteView bytes, const IndexClaim& claim, IndexList& positions) {
  const uint32_t rice_bits = claim.coding.rice_bits;
  if (rice_bits > kMaxRiceBits) return Damaged(claim, "impossible Rice parameter");
  BitReader reader(bytes);
  uint16_t* const out = positions.data();
  size_t next = 0;
  for (uint32_t i = 0; i < claim.count; ++i) {
    const size_t high = reader.ReadUnary();
    next += (high << rice_bits) + reader.Read(rice_bits);
    if (next >= claim.n) return Damaged(claim, "beyond the tile");
    out[i] = static_cast<uint16_t>(next++);
  }
  if (!reader.AtCleanEnd())
    return Damaged(claim, "the bits do not end with the last one");
  positions.set_count(claim.count);
  return absl::OkStatus();
}

absl::Status ReadBlocks(ByteView bytes, const IndexClaim& claim, IndexList& positions) {
  const auto blocks = static_cast<uint32_t>(BlocksOf(claim.n));
  IndexList sent(blocks);
  IndexClaim limit = claim;
  limit.count = blocks;
  if (absl::Status read = ReadBits(bytes, limit, blocks, sent); !read.ok()) return read;
  size_t count = size_t{sent.count()} * kSelectorBlock;
  if (sent.count() > 0 && sent.view().back() == blocks - 1) {
    count -= blocks * kSelectorBlock - claim.n;
  }
  if (count != claim.count) return Damaged(claim, "blocks of another size");
  positions.set_count(0);
  for (const uint16_t block : sent.view()) {
    const uint32_t first = block * kSelectorBlock;
    const uint32_t last = std::min(first + kSelectorBlock, claim.n);
    for (uint32_t i = first; i < last; ++i) positions.Append(i);
  }
  return absl::OkStatus();
}

// Returns the exact number of bytes of a coding, or for kRice, whose size depends on the
// positions, the claimed one.
size_t ExpectedBytes(const IndexClaim& claim) {
  switch (claim.coding.coder) {
    case IndexCoder::kEvery:
      return 0;
    case IndexCoder::kU16:
      return size_t{claim.count} * sizeof(uint16_t);
    case IndexCoder::kBitmap:
      return BytesOfBits(claim.n);
    case IndexCoder::kRice:
      return claim.coding.bytes;
    case IndexCoder::kSeed:
      return kSeedCoding.bytes;
    case IndexCoder::kBlocks:
      return BlockCoding(claim.n).bytes;
  }
  return 0;
}

}  // namespace

std::string_view IndexCoderName(IndexCoder coder) {
  switch (coder) {
    case IndexCoder::kEvery:
      return "every";
    case IndexCoder::kU16:
      return "u16";
    case IndexCoder::kBitmap:
      return "bitmap";
    case IndexCoder::kRice:
      return "rice";
    case IndexCoder::kSeed:
      return "seed";
    case IndexCoder::kBlocks:
      return "blocks";
  }
  return "unknown";
}

IndexCoding ChooseIndexCoding(std::span<const uint16_t> positions, uint32_t n) {
  if (positions.size() == n) return {.coder = IndexCoder::kEvery};
  IndexCoding best{.coder = IndexCoder::kU16,
                   .bytes = static_cast<uint32_t>(positions.size_bytes())};
  const auto bitmap = static_cast<uint32_t>(BytesOfBits(n));
  if (bitmap < best.bytes) best = {.coder = IndexCoder::kBitmap, .bytes = bitmap};
  const IndexCoding rice = BestRice(positions);
  return rice.bytes < best.bytes ? rice : best;
}

IndexCoding BlockCoding(uint32_t n) {
  return {.coder = IndexCoder::kBlocks,
          .bytes = static_cast<uint32_t>(BytesOfBits(BlocksOf(n)))};
}

void WriteIndices(std::span<const uint16_t> positions, const IndexCoding& coding,
                  MutableByteView out) {
  SYNCLINE_CHECK(out.size() == coding.bytes);
  switch (coding.coder) {
    case IndexCoder::kEvery:
    case IndexCoder::kSeed:
      return;
    case IndexCoder::kU16:
      if (!positions.empty()) {
        std::memcpy(out.data(), positions.data(), positions.size_bytes());
      }
      return;
    case IndexCoder::kBitmap:
      std::ranges::fill(out, std::byte{0});
      for (const uint16_t i : positions) SetBit(out, i);
      return;
    case IndexCoder::kRice:
      return WriteRice(positions, coding.rice_bits, out);
    case IndexCoder::kBlocks:
      std::ranges::fill(out, std::byte{0});
      for (const uint16_t i : positions) SetBit(out, i / kSelectorBlock);
      return;
  }
}

absl::Status ReadIndices(ByteView bytes, const IndexClaim& claim, IndexList& positions) {
  if (claim.n > kTileElements || claim.count > claim.n) {
    return Damaged(claim, "more positions than elements");
  }
  if (bytes.size() != claim.coding.bytes || bytes.size() != ExpectedBytes(claim)) {
    return Damaged(claim, absl::StrCat("impossible length ", bytes.size()));
  }
  if (claim.coding.coder != IndexCoder::kRice && claim.coding.rice_bits != 0) {
    return Damaged(claim, "Rice parameter of another coder");
  }
  switch (claim.coding.coder) {
    case IndexCoder::kEvery:
      if (claim.count != claim.n) return Damaged(claim, "every one, but fewer");
      positions.SetEvery(claim.count);
      return absl::OkStatus();
    case IndexCoder::kU16:
      return ReadU16(bytes, claim, positions);
    case IndexCoder::kBitmap:
      return ReadBitmap(bytes, claim, positions);
    case IndexCoder::kRice:
      return ReadRice(bytes, claim, positions);
    case IndexCoder::kSeed: {
      uint64_t seed;
      std::memcpy(&seed, bytes.data(), sizeof(seed));
      RandomPositions(seed, claim.count, claim.n, positions);
      return absl::OkStatus();
    }
    case IndexCoder::kBlocks:
      return ReadBlocks(bytes, claim, positions);
  }
  return Damaged(claim, "unknown coder");
}

}  // namespace syncline
