// A tile is too large for one multiprocessor. So a team of up to eight thread blocks,
// called parts, holds it in shared memory. The parts meet at the tile's board in the
// workspace: none may write before all know that the whole tile is finite.
//
//   const Part part = TakePart(workspace, elements, shared.ticket);
//   ... StoreFresh(&board->..., ...) ...
//   Team{.arrived = &board->arrived, .parts = part.parts}.Meet();
//   ... LoadFresh(&board->...) ...
//
// Blocks take tickets in the order in which they start. So a block waits only for blocks
// of its own tile, and all earlier tiles are complete or running. At most seven blocks
// wait for one that has not started, and a device runs many more at once. A ticket beyond
// the last part means that another grid uses the same workspace; the kernel then traps,
// because it would write outside the arrays.
#pragma once

#include "comm/base/limits.h"
#include "comm/base/tiling.h"
#include "comm/codec/cuda/device.cuh"

namespace syncline::SYNCLINE_GPU {

constexpr uint32_t kPartLog2 = 13;
constexpr uint32_t kPartElements = 1u << kPartLog2;
constexpr uint32_t kParts = kTileElements / kPartElements;
// Elements that a warp processes at once, four for each lane.
constexpr uint32_t kRowElements = 4 * kWarp;

constexpr uint32_t kInfinity =
    0x7f800000u;  // its bits; magnitudes from here on are not finite

struct Part {
  uint32_t tile = 0;
  uint32_t index = 0;          // number in its tile
  uint32_t parts = 0;          // parts of its tile
  uint32_t tile_elements = 0;  // elements of its tile
  uint32_t first = 0;          // position in the tile
  uint32_t elements = 0;
  uint64_t offset = 0;  // position in the arrays

  SYNCLINE_DEVICE bool last() const { return index + 1 == parts; }
};

SYNCLINE_HOST_DEVICE constexpr uint32_t PartsOf(uint64_t elements) {
  return static_cast<uint32_t>((elements + kPartElements - 1) / kPartElements);
}

// Returns part number `ticket` of an array of `elements`.
SYNCLINE_DEVICE Part PartAt(uint32_t ticket, uint64_t elements) {
  Part part;
  part.tile = ticket / kParts;
  part.index = ticket % kParts;
  const uint64_t tile_first = uint64_t{part.tile} * kTileElements;
  const uint64_t rest = elements - tile_first;
  part.tile_elements = rest < kTileElements ? static_cast<uint32_t>(rest) : kTileElements;
  part.parts = (part.tile_elements + kPartElements - 1) / kPartElements;
  part.first = part.index * kPartElements;
  const uint32_t left = part.tile_elements - part.first;
  part.elements = left < kPartElements ? left : kPartElements;
  part.offset = tile_first + part.first;
  return part;
}

// `tickets` starts at 0 for each grid. `shared` is a word of shared memory.
SYNCLINE_DEVICE Part TakePart(uint32_t* tickets, uint64_t elements, uint32_t& shared) {
  if (ThreadIndex() == 0) shared = AtomicAdd(tickets, 1);
  BlockBarrier();
  if (shared >= PartsOf(elements)) Trap();
  return PartAt(shared, elements);
}

struct Team {
  uint32_t* arrived = nullptr;  // on the board; 0 at first
  uint32_t parts = 0;
  uint32_t meetings = 0;

  // Returns when all parts of the tile have called it equally often. Earlier writes to
  // the board are then visible.
  SYNCLINE_DEVICE void Meet() {
    ++meetings;
    BlockBarrier();
    if (ThreadIndex() == 0) {
      Fence();
      AtomicAdd(arrived, 1);
      while (LoadFresh(arrived) < meetings * parts) Pause();
      Fence();
    }
    BlockBarrier();
  }
};

// The largest magnitude of each part of a tile, which shows, among other things, whether
// it is finite.
struct Magnitudes {
  uint32_t of_warp[kThreads / kWarp];  // of this part, in shared memory
};

// Publishes the largest magnitude of the part; `mine` is that of the thread. REQUIRES: a
// BlockBarrier since the last use of `shared`.
SYNCLINE_DEVICE void PublishMagnitude(uint32_t mine, Magnitudes& shared,
                                      uint32_t* board) {
  const uint32_t of_warp = WarpMax(mine);
  if (Lane() == 0) shared.of_warp[Warp()] = of_warp;
  BlockBarrier();
  if (ThreadIndex() != 0) return;
  uint32_t most = 0;
  for (const uint32_t magnitude : shared.of_warp) {
    most = most > magnitude ? most : magnitude;
  }
  StoreFresh(board, most);
}

// Returns the largest magnitude of parts [first, last).
SYNCLINE_DEVICE uint32_t LargestMagnitude(const uint32_t* board, uint32_t first,
                                          uint32_t last) {
  uint32_t most = 0;
  for (uint32_t i = first; i < last; ++i) {
    const uint32_t magnitude = LoadFresh(board + i);
    most = most > magnitude ? most : magnitude;
  }
  return most;
}

}  // namespace syncline::SYNCLINE_GPU
