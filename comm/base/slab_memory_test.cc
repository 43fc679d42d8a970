#include "comm/base/slab_memory.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "gtest/gtest.h"

namespace syncline {
namespace {

constexpr std::byte kMark{0x5a};

TEST(SlabMemory, HandsOutZeroedAlignedPiecesThatDoNotOverlap) {
  const size_t sizes[] = {1, 63, 64, 65, 4095, 4096, 4097, 0, 1 << 20};
  size_t needed = 0;
  for (const size_t size : sizes) needed += SlabMemory::Needs(size);
  auto memory = SlabMemory::Create(needed);
  ASSERT_TRUE(memory.ok()) << memory.status();
  const std::byte* end = nullptr;
  for (const size_t size : sizes) {
    std::byte* piece = memory->Take(size);
    if (size == 0) {
      EXPECT_EQ(piece, nullptr);
      continue;
    }
    EXPECT_EQ(reinterpret_cast<uintptr_t>(piece) % kBufferAlignment, 0u);
    EXPECT_GE(piece, end);
    EXPECT_EQ(std::ranges::count(std::span(piece, size), std::byte{0}),
              static_cast<std::ptrdiff_t>(size));
    std::ranges::fill(std::span(piece, size), kMark);
    end = piece + size;
  }
}

TEST(SlabMemory, MovesWithItsPieces) {
  auto memory = SlabMemory::Create(SlabMemory::Needs(100));
  ASSERT_TRUE(memory.ok());
  std::byte* piece = memory->Take(100);
  SlabMemory moved = *std::move(memory);
  piece[99] = kMark;
  SlabMemory target = *SlabMemory::Create(SlabMemory::Needs(1));
  target = std::move(moved);
  EXPECT_EQ(piece[99], kMark);
}

TEST(SlabMemory, WhatNoSystemHasIsRefused) {
  const auto memory = SlabMemory::Create(size_t{1} << 60);
  EXPECT_EQ(memory.status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(SlabMemoryDeathTest, MoreThanThereIsIsABug) {
  auto memory = SlabMemory::Create(SlabMemory::Needs(64));
  ASSERT_TRUE(memory.ok());
  memory->Take(64);
  EXPECT_DEATH(memory->Take(1), "CHECK");
}

}  // namespace
}  // namespace syncline
