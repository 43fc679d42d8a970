// A GPU for tests: runs all threads of a grid as fibers of the calling thread.
//
// A fiber runs until it waits (BlockBarrier, WarpExchange, Pause). Then a random fiber
// continues, or for a while always the one that became ready last, so that some warps run
// far ahead. A kernel that lacks a barrier then gives another result. Blocks start in
// random order, a few of them are resident at once, and shared memory starts as garbage.
// Divergent barriers, which a GPU may tolerate or hang on, abort. Not emulated are caches
// and the order of memory (so a missing Fence is not found), and time.
//
//   EmulatedStream stream{.seed = 7};
//   RunGrid({.blocks = 4, .threads = 256}, stream, [&](void* shared) {
//     out[BlockIndex() * 256 + ThreadIndex()] = 1;
//   });
//
// Thread safety: a grid belongs to the thread that calls RunGrid; different threads may
// run grids at the same time. The other functions may be called only inside a grid.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

namespace syncline::emulated {

constexpr uint32_t kWarp = 32;

struct EmulatedStream {
  uint64_t seed = 1;  // determines the order of blocks and threads
  // Number of blocks that run at once. Kernels whose blocks wait for each other need
  // enough of them.
  uint32_t resident = 8;
  bool captures = false;  // pretends to capture a graph; work still runs at once
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
// Returns the values that the 32 threads of the warp gave. Valid until the next exchange
// but one.
std::span<const uint32_t> WarpExchange(uint32_t value);
// Lets other threads run.
void Pause();

}  // namespace syncline::emulated
