// A GPU for tests: runs the blocks of a grid, 256 threads and so on, as fibers of the
// calling thread.
//
// A fiber runs until it waits (BlockBarrier, WarpExchange, Pause); then one drawn at
// random goes on, or for a while always the last one, so that some warps run far ahead: a
// kernel that lacks a barrier gives another result. Blocks
// start in random order, a few of them are resident at once, and shared memory starts as
// garbage. Divergent barriers, which a GPU may forgive or hang on, abort. What is not
// emulated: caches and the order of memory, so a missing Fence stays unnoticed; time.
//
//   EmulatedStream stream{.seed = 7};
//   RunGrid({.blocks = 4, .threads = 256}, stream, [&](void* shared) {
//     out[BlockIndex() * 256 + ThreadIndex()] = 1;
//   });
//
// Thread safety: each grid is of the thread that calls RunGrid; different threads may run
// grids at the same time. The other functions may be called only inside a grid.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

namespace syncline::emulated {

constexpr uint32_t kWarp = 32;

struct EmulatedStream {
  uint64_t seed = 1;  // of the order of blocks and threads; other seeds, other orders
  // Blocks that run at once. Kernels whose blocks wait for each other need as many.
  uint32_t resident = 8;
  bool captures = false;  // as if into a graph, although all runs at once
};

struct Grid {
  uint32_t blocks = 1;
  uint32_t threads = kWarp;  // of a block, a multiple of kWarp
  size_t shared_bytes = 0;
};

// Runs `body` once for each thread of the grid. The argument is the block's shared
// memory.
void RunGrid(const Grid& grid, const EmulatedStream& stream,
             const std::function<void(void* shared)>& body);

uint32_t ThreadIndex();
uint32_t BlockIndex();

void BlockBarrier();
void WarpBarrier();
// What the 32 threads of the warp gave, valid until the next but one exchange.
std::span<const uint32_t> WarpExchange(uint32_t value);
// Lets others run.
void Pause();

}  // namespace syncline::emulated
