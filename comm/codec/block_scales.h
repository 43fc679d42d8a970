// The layout of codecs that scale blocks of a tile: an element decodes from its own few
// bits and the scale of its block.
//
//   offset  bytes
//   0       1                 log2 of the elements of a block, 8 to 16
//   1       3                 zero
//   4       4 x blocks        FP32 scale of each block, finite and >= 0
//           rest              the elements' bits, the first in the lowest bits of the
//                             first byte; unused bits of the last byte are zero
//
//   const BlockLayout layout = {.block_log2 = 12, .bits = 1};
//   layout.Bytes(n);
//   SYNCLINE_ASSIGN_OR_RETURN(ScaledBlocks blocks, ParseScaledBlocks(bytes, n, 1));
//
// The block size is part of the bytes, so decoders accept any.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "comm/base/buffer.h"
#include "comm/base/tiling.h"
#include "comm/codec/wire_values.h"

namespace syncline {

inline constexpr uint32_t kMinBlockLog2 = 8;
inline constexpr uint32_t kMaxBlockLog2 = 16;
static_assert(kTileElements == 1u << kMaxBlockLog2);

constexpr bool IsBlockLog2(uint32_t block_log2) {
  return block_log2 >= kMinBlockLog2 && block_log2 <= kMaxBlockLog2;
}

struct BlockLayout {
  uint32_t block_log2 = kMaxBlockLog2;
  uint32_t bits = 8;  // per element

  size_t ScalesOffset() const { return 4; }
  size_t Blocks(size_t elements) const {
    return (elements + (size_t{1} << block_log2) - 1) >> block_log2;
  }
  size_t CodesOffset(size_t elements) const {
    return ScalesOffset() + sizeof(float) * Blocks(elements);
  }
  size_t Bytes(size_t elements) const {
    return CodesOffset(elements) + (elements * bits + 7) / 8;
  }

  void WriteHeader(std::byte* bytes) const {
    const uint32_t header = block_log2;
    std::memcpy(bytes, &header, sizeof(header));
  }
};

// Pointers into checked bytes, for kernels.
struct ScaledBlocks {
  const std::byte* scales = nullptr;
  const std::byte* codes = nullptr;
  uint32_t block_log2 = kMaxBlockLog2;

  [[gnu::always_inline]] float ScaleOf(size_t element) const {
    return AsFloats(scales)[element >> block_log2];
  }
};

// Fails with InvalidArgument unless `bytes` has the layout above for `elements` of `bits`
// each.
inline absl::StatusOr<ScaledBlocks> ParseScaledBlocks(ByteView bytes, size_t elements,
                                                      uint32_t bits) {
  uint32_t header = 0;
  if (bytes.size() < sizeof(header)) {
    return absl::InvalidArgumentError(
        absl::StrCat("encoded tile of ", bytes.size(), " bytes has no header"));
  }
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (!IsBlockLog2(header)) {
    return absl::InvalidArgumentError(
        absl::StrCat("encoded tile has blocks of 2^", header, " elements"));
  }
  const BlockLayout layout = {.block_log2 = header, .bits = bits};
  if (bytes.size() != layout.Bytes(elements)) {
    return absl::InvalidArgumentError(
        absl::StrCat("encoded tile has ", bytes.size(), " bytes, but ", elements,
                     " elements need ", layout.Bytes(elements)));
  }
  const ScaledBlocks blocks = {.scales = bytes.data() + layout.ScalesOffset(),
                               .codes = bytes.data() + layout.CodesOffset(elements),
                               .block_log2 = header};
  for (size_t block = 0; block < layout.Blocks(elements); ++block) {
    const float scale = AsFloats(blocks.scales)[block];
    if (!std::isfinite(scale) || std::signbit(scale)) {
      return absl::InvalidArgumentError(
          absl::StrCat("encoded tile has scale ", scale, " for block ", block));
    }
  }
  const size_t used = elements * bits % 8;
  if (used != 0 && std::to_integer<uint32_t>(bytes.back()) >> used != 0) {
    return absl::InvalidArgumentError("encoded tile has bits beyond its last element");
  }
  return blocks;
}

}  // namespace syncline
