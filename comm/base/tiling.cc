#include "comm/base/tiling.h"

#include <algorithm>

namespace syncline {

std::vector<BlockRange> CutIntoBlocks(std::span<const uint64_t> tensor_elements) {
  std::vector<BlockRange> blocks;
  for (uint32_t tensor = 0; tensor < tensor_elements.size(); ++tensor) {
    for (uint64_t first = 0; first < tensor_elements[tensor]; first += kBlockElements) {
      const uint64_t rest = tensor_elements[tensor] - first;
      blocks.push_back({tensor, first,
                        static_cast<uint32_t>(std::min<uint64_t>(rest, kBlockElements))});
    }
  }
  return blocks;
}

}  // namespace syncline
