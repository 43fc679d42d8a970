#include "comm/base/tiling.h"

#include <algorithm>

namespace syncline {
namespace {

// Workers and servers each cut by themselves, so a change of these constants must raise
// kProtocolVersion.
//
// A model has about this many blocks or more, unless they would be shorter than
// kLeastTiles. This is enough for several servers to share a small model, and for both
// directions to overlap.
constexpr uint64_t kWantedBlocks = 64;
constexpr uint64_t kLeastTiles = 2;

}  // namespace

std::vector<BlockRange> CutIntoBlocks(std::span<const uint64_t> tensor_elements) {
  uint64_t tiles = 0;
  for (const uint64_t elements : tensor_elements) tiles += TilesOf(elements);
  const uint64_t longest =
      std::clamp<uint64_t>(tiles / kWantedBlocks, kLeastTiles, kTilesPerBlock) *
      kTileElements;
  std::vector<BlockRange> blocks;
  for (uint32_t tensor = 0; tensor < tensor_elements.size(); ++tensor) {
    for (uint64_t first = 0; first < tensor_elements[tensor]; first += longest) {
      const uint64_t rest = tensor_elements[tensor] - first;
      blocks.push_back(
          {tensor, first, static_cast<uint32_t>(std::min<uint64_t>(rest, longest))});
    }
  }
  return blocks;
}

}  // namespace syncline
