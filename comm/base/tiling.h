// Cuts tensors into blocks, identically on workers, servers and the coordinator.
//
// A block is a run of at most kTilesPerBlock tiles of one tensor. A model of fewer than
// 64 such blocks has shorter ones (2 tiles or more), so that servers can share it. While
// one block is pushed, the view of the previous one returns, so that little is left at
// the end of a step. Cutting is a pure function of the element counts, so blocks are
// never sent: block ids are positions in the list that CutIntoBlocks returns, and every
// member computes the same list.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/base/limits.h"

namespace syncline {

// One block: elements [first_element, first_element + elements) of tensor number
// `tensor`.
struct BlockRange {
  uint32_t tensor = 0;
  uint64_t first_element = 0;
  uint32_t elements = 0;

  bool operator==(const BlockRange&) const = default;
};

// Returns the blocks of all tensors, in tensor order, then in element order.
// `tensor_elements[i]` is the number of elements of tensor i; a tensor of 0 elements has
// no block.
std::vector<BlockRange> CutIntoBlocks(std::span<const uint64_t> tensor_elements);

constexpr uint32_t TilesOf(uint64_t elements) {
  return static_cast<uint32_t>((elements + kTileElements - 1) / kTileElements);
}

// Returns the number of elements of tile `tile` in a run of `elements`.
constexpr uint32_t TileElements(uint64_t elements, uint32_t tile) {
  const uint64_t rest = elements - uint64_t{tile} * kTileElements;
  return rest < kTileElements ? static_cast<uint32_t>(rest) : kTileElements;
}

}  // namespace syncline
