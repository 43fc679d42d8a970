#include "comm/codec/cuda/emulator/emulator.h"

#include <gtest/gtest.h>

#include <functional>
#include <span>
#include <vector>

namespace syncline::emulated {
namespace {

constexpr uint32_t kThreads = 64;

TEST(Emulator, RunsEachThreadOfEachBlockOnce) {
  std::vector<int> runs(10 * kThreads);
  RunGrid({.blocks = 10, .threads = kThreads}, {.resident = 3},
          [&](void*) { ++runs[BlockIndex() * kThreads + ThreadIndex()]; });
  EXPECT_EQ(runs, std::vector<int>(10 * kThreads, 1));
}

TEST(Emulator, RunsAnotherOrderForAnotherSeed) {
  const auto order = [](uint64_t seed) {
    std::vector<uint32_t> order;
    RunGrid({.blocks = 2, .threads = kThreads}, {.seed = seed},
            [&](void*) { order.push_back(BlockIndex() * kThreads + ThreadIndex()); });
    return order;
  };
  EXPECT_EQ(order(1), order(1));
  EXPECT_NE(order(1), order(2));
}

// Returns how often a thread fails to find the number that one `distance` away wrote to
// shared memory, over many orders of threads.
uint32_t WrongAfter(const std::function<void()>& barrier, uint32_t distance) {
  uint32_t wrong = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    RunGrid({.threads = kThreads, .shared_bytes = kThreads * sizeof(uint32_t)},
            {.seed = seed}, [&](void* shared) {
              auto* const numbers = static_cast<uint32_t*>(shared);
              numbers[ThreadIndex()] = ThreadIndex();
              barrier();
              const uint32_t other = ThreadIndex() ^ distance;
              wrong += numbers[other] != other ? 1 : 0;
            });
  }
  return wrong;
}

TEST(Emulator, ShowsAMissingBarrier) {
  EXPECT_EQ(WrongAfter(BlockBarrier, kWarp), 0u);
  EXPECT_EQ(WrongAfter(WarpBarrier, 1), 0u);
  EXPECT_GT(WrongAfter([] {}, 1), 0u);
  EXPECT_GT(WrongAfter(WarpBarrier, kWarp), 0u);
}

TEST(Emulator, ExchangesAmongTheThreadsOfAWarpOnly) {
  RunGrid({.blocks = 3, .threads = kThreads}, {}, [&](void*) {
    for (uint32_t round = 0; round < 5; ++round) {
      const uint32_t mine = round * 1000 + BlockIndex() * 100 + ThreadIndex();
      const std::span<const uint32_t> values = WarpExchange(mine);
      const uint32_t first = mine - ThreadIndex() % kWarp;
      for (uint32_t lane = 0; lane < kWarp; ++lane) EXPECT_EQ(values[lane], first + lane);
    }
  });
}

TEST(Emulator, LetsBlocksWaitForEachOther) {
  uint32_t arrived = 0;
  RunGrid({.blocks = 8, .threads = kWarp}, {.resident = 8}, [&](void*) {
    if (ThreadIndex() == 0) ++arrived;
    while (arrived < 8) Pause();
  });
  EXPECT_EQ(arrived, 8u);
}

TEST(EmulatorDeathTest, AbortsWhenThreadsDivergeAtABarrier) {
  const auto half_arrives = [](void*) {
    if (ThreadIndex() < kThreads / 2) BlockBarrier();
  };
  EXPECT_DEATH(RunGrid({.threads = kThreads}, {}, half_arrives), "CHECK failed");
}

}  // namespace
}  // namespace syncline::emulated
