// The tile frame: a self-describing 64-byte header for each encoded tile
// (docs/wire_format.md).
//
// The payload of a push, seed or publish message for one block is
//   [TileHeader x tiles][encoded tile 0, padded to 64][encoded tile 1, padded to 64]...
// Headers come first so that a dense FP32 block can be sent straight from the tensor's
// own memory.
//
// The parser trusts nothing. It checks magic, version, tensor, tile numbers, element
// counts, lengths, header CRC and (if present) payload CRC against what the receiver
// knows about the block, before any value is used.
//
// Thread safety: the functions are thread-safe; a BlockWriter belongs to one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/base/buffer.h"
#include "comm/base/tiling.h"
#include "comm/codec/codec.h"

namespace syncline {

inline constexpr uint32_t kTileMagic = 0x314c5453;  // "STL1"
inline constexpr uint16_t kTileVersion = 1;
inline constexpr size_t kTileAlignment = 64;

// Little-endian, with exactly this layout on the wire.
struct TileHeader {
  uint32_t magic = kTileMagic;
  uint16_t version = kTileVersion;
  uint16_t codec = 0;  // CodecId
  uint32_t tensor = 0;
  uint32_t tile = 0;      // number of the tile inside its tensor
  uint32_t elements = 0;  // n
  uint32_t nonzeros = 0;  // Codec::Nonzeros; n unless the codec is sparse
  uint64_t step = 0;      // step of a contribution, version of a published view
  uint64_t epoch = 0;
  uint32_t payload_bytes = 0;  // without padding
  uint32_t payload_crc = 0;    // CRC-32C of the payload; 0 unless kTilePayloadCrc is set
  uint32_t flags = 0;
  uint32_t view_crc = 0;  // kTileViewCrc: CRC-32C of the receiver's values afterwards
  uint32_t reserved = 0;
  uint32_t header_crc = 0;  // CRC-32C of the 60 bytes before it
};
static_assert(sizeof(TileHeader) == 64);

// Flag: the header has a payload CRC. It is worth its time across a network, not inside
// one host's memory.
inline constexpr uint32_t kTilePayloadCrc = 1;
// Flag: the header has a view CRC. Some published deltas carry one. A receiver that
// applied all deltas so far holds FP32 values with this CRC; if it does not, it must
// fetch the whole tile.
inline constexpr uint32_t kTileViewCrc = 2;

enum class Checksum { kHeaderOnly, kHeaderAndPayload };

// Which block the frames belong to, and with which step and epoch they are sent.
struct BlockLabel {
  BlockRange range;
  uint64_t step = 0;
  uint64_t epoch = 0;
  uint64_t seed = 0;  // EncodeContext::seed; not on the wire
};

// Returns the context of the block's elements from number `offset` (inside the block) on.
inline EncodeContext ContextAt(const BlockLabel& label, uint64_t offset) {
  return {.seed = label.seed,
          .step = label.step,
          .tensor = label.range.tensor,
          .first_element = label.range.first_element + offset};
}

// The codecs that a receiver accepts for one tensor. Tiles of one block may differ in
// codec.
using CodecSet = absl::InlinedVector<const Codec*, 4>;

// Returns the size of the largest message payload for `elements` values if each tile may
// use any of the codecs.
size_t MaxBlockBytes(const Codec& codec, uint32_t elements);
size_t MaxBlockBytes(const CodecSet& codecs, uint32_t elements);

// Encodes `values` (the block's elements) with `codec`. The payload owns a buffer from
// `pool`, except that FP32 tiles are borrowed from `values`: the caller must keep
// `values` unchanged until the send is done, or send Gather(payload), which owns
// everything.
Payload EncodeBlock(const Codec& codec, const BlockLabel& label,
                    std::span<const float> values, Checksum checksum, BufferPool& pool);

// Does the same for values that lie in memory exactly as `codec` would encode them. They
// are not copied; the payload shares their owner. REQUIRES: zeros follow up to a multiple
// of kTileAlignment.
Payload LendBlock(const Codec& codec, const BlockLabel& label, Slice values,
                  Checksum checksum, BufferPool& pool);

// Writes the payload of one block tile by tile, for callers that encode the pieces of a
// tile themselves, or some tiles with another codec.
//
//   BlockWriter writer(label, checksum, memory);
//   for (each tile) {
//     const MutableByteView room = writer.NextTile(codec);
//     writer.EndTile(codec.Encode(tile, residual, ContextAt(label, first), room));
//   }
//   Payload payload = writer.Finish();
class BlockWriter {
 public:
  // `memory` holds MaxBlockBytes of the codecs used. The payload shares its ownership.
  BlockWriter(const BlockLabel& label, Checksum checksum,
              std::shared_ptr<std::byte> memory);

  // Returns room for the next tile: codec.MaxEncodedBytes of its elements.
  MutableByteView NextTile(const Codec& codec);
  // Ends the tile whose encoding is the first `encoded_bytes` of the room. REQUIRES:
  // NextTile was called.
  void EndTile(size_t encoded_bytes, std::optional<uint32_t> view_crc = std::nullopt);
  // Returns the payload. REQUIRES: EndTile was called for every tile.
  Payload Finish();

 private:
  const uint32_t elements_;
  std::shared_ptr<std::byte> memory_;
  TileHeader header_;
  const Codec* codec_ = nullptr;  // codec of the open tile; null: none is open
  uint32_t tile_ = 0;             // number inside the block
  size_t used_;
};

// Returns the same frames with another epoch: the headers are new, the encodings are
// shared with `payload`. REQUIRES: `payload` came from a BlockWriter.
Payload Relabel(const Payload& payload, uint32_t elements, uint64_t epoch,
                BufferPool& pool);

// One checked tile of a received block; `bytes` points into the received payload.
struct TileView {
  const Codec* codec = nullptr;
  ByteView bytes;
  uint32_t first_element = 0;  // inside the block
  uint32_t elements = 0;
  std::optional<uint32_t> view_crc = std::nullopt;
};

// A received and fully checked block.
struct BlockView {
  absl::InlinedVector<TileView, kTilesPerBlock> tiles;  // no allocation
};

// Checks everything that `expected` and `codecs` allow to check, including
// Codec::Validate on each tile. The step and epoch in the frames must equal those of
// `expected`. Fails with InvalidArgument or DataLoss (CRC), which name the tile and the
// field.
absl::StatusOr<BlockView> ParseBlock(ByteView payload, const BlockLabel& expected,
                                     const CodecSet& codecs);
// The same for a payload that may have landed in two parts: the headers of all tiles, and
// the rest.
absl::StatusOr<BlockView> ParseBlock(const Landed& payload, const BlockLabel& expected,
                                     const CodecSet& codecs);

}  // namespace syncline
