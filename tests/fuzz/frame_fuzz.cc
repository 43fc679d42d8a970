// Fuzzes the payload of a push: frames of a block, parsed and added up as a shard does.
//
//   offset  bytes
//   0       1      index in Transfers()
//   1       1      Repair
//   2       3      elements of the block, less one, modulo three tiles
//   5       rest   the payload
#include <algorithm>
#include <cstddef>
#include <cstring>

#include "comm/base/check.h"
#include "comm/base/crc32c.h"
#include "comm/base/limits.h"
#include "comm/codec/frame.h"
#include "tests/fuzz/fuzz.h"

namespace syncline::fuzz {
namespace {

// The CRCs to correct before parsing, because no mutation finds a CRC.
enum Repair : uint32_t { kHeaderCrcs = 1, kPayloadCrcs = 2 };

constexpr uint32_t kMaxElements = 3 * kTileElements;

BlockLabel Label(uint32_t elements) {
  return {.range = {.tensor = 5, .first_element = kTileElements, .elements = elements},
          .step = 41,
          .epoch = 7};
}

void RepairCrcs(Bytes& payload, uint32_t elements, uint32_t repair) {
  const uint32_t tiles = TilesOf(elements);
  size_t used = tiles * sizeof(TileHeader);
  if (payload.size() < used) return;
  for (uint32_t tile = 0; tile < tiles; ++tile) {
    std::byte* const place = payload.data() + tile * sizeof(TileHeader);
    TileHeader header;
    std::memcpy(&header, place, sizeof(header));
    const ByteView rest = ByteView(payload).subspan(std::min(used, payload.size()));
    if ((repair & kPayloadCrcs) != 0 && header.payload_bytes <= rest.size()) {
      header.payload_crc = Crc32c(rest.first(header.payload_bytes));
    }
    if ((repair & kHeaderCrcs) != 0) {
      header.header_crc = Crc32c(
          std::as_bytes(std::span(&header, 1)).first(offsetof(TileHeader, header_crc)));
    }
    std::memcpy(place, &header, sizeof(header));
    used += (size_t{header.payload_bytes} + kTileAlignment - 1) / kTileAlignment *
            kTileAlignment;
  }
}

void CheckFrames(ByteView payload, uint32_t elements, const CodecSet& codecs) {
  const absl::StatusOr<BlockView> block = ParseBlock(payload, Label(elements), codecs);
  if (!block.ok()) {
    SYNCLINE_CHECK(absl::IsInvalidArgument(block.status()) ||
                   absl::IsDataLoss(block.status()));
    return;
  }
  SYNCLINE_CHECK(block->tiles.size() == TilesOf(elements));
  uint32_t next = 0;
  for (const TileView& tile : block->tiles) {
    SYNCLINE_CHECK(tile.first_element == next);
    SYNCLINE_CHECK(std::ranges::count(codecs, tile.codec) == 1);
    SYNCLINE_CHECK(tile.bytes.data() >= payload.data() &&
                   tile.bytes.data() + tile.bytes.size() <=
                       payload.data() + payload.size());
    SYNCLINE_CHECK(CheckCodec(*tile.codec, tile.bytes, tile.elements));
    next += tile.elements;
  }
  SYNCLINE_CHECK(next == elements);
}

}  // namespace

std::vector<Bytes> Seeds() {
  std::vector<Bytes> seeds;
  BufferPool pool(0);
  for (uint32_t which = 0; which < Transfers().size(); ++which) {
    const Transfer& transfer = Transfers()[which];
    for (const uint32_t elements : {1u, 300u, kTileElements + 70}) {
      // Large blocks of a few codecs are enough.
      if (elements > kTileElements && which % 4 != 0) continue;
      for (const Checksum checksum :
           {Checksum::kHeaderOnly, Checksum::kHeaderAndPayload}) {
        const bool has_crc = checksum == Checksum::kHeaderAndPayload;
        const std::vector<float> values = SomeValues(elements, which);
        const Buffer payload =
            Gather(EncodeBlock(*transfer.codec, Label(elements), values, checksum, pool));
        Bytes& seed = seeds.emplace_back();
        Append(seed, which, 1);
        Append(seed, has_crc ? kHeaderCrcs | kPayloadCrcs : kHeaderCrcs, 1);
        Append(seed, elements - 1, 3);
        Append(seed, payload.view());
      }
    }
  }
  return seeds;
}

}  // namespace syncline::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace syncline;  // NOLINT(google-build-using-namespace): C has none
  fuzz::Reader input(std::as_bytes(std::span(data, size)));
  const std::span<const Transfer> transfers = fuzz::Transfers();
  const Transfer& transfer = transfers[input.Take(1) % transfers.size()];
  const uint32_t repair = input.Take(1);
  const uint32_t elements = input.Take(3) % fuzz::kMaxElements + 1;
  fuzz::Bytes payload(input.rest().begin(), input.rest().end());
  fuzz::RepairCrcs(payload, elements, repair);
  fuzz::CheckFrames(payload, elements, transfer.Accepted());
  return 0;
}
