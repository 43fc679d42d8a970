#include "comm/base/buffer.h"

#include <cstring>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

bool IsAligned(const std::byte* data) {
  return reinterpret_cast<uintptr_t>(data) % kBufferAlignment == 0;
}

TEST(Buffer, IsAlignedForEverySize) {
  for (size_t bytes : {1, 63, 64, 65, 4095, 4096, 4097, 1 << 20}) {
    const Buffer buffer = Buffer::Allocate(bytes);
    EXPECT_EQ(buffer.size(), bytes);
    EXPECT_TRUE(IsAligned(buffer.data())) << bytes;
    std::memset(buffer.data(), 0xab, bytes);
  }
}

TEST(Buffer, OfZeroBytesIsEmptyAndCanBeCopied) {
  const Buffer nothing = Buffer::Allocate(0);
  EXPECT_TRUE(nothing.empty());
  EXPECT_TRUE(Buffer::CopyOf(nothing.view()).empty());
  EXPECT_TRUE(Gather({}).empty());
}

TEST(Buffer, SliceKeepsTheMemoryAlive) {
  Slice slice;
  std::weak_ptr<std::byte> memory;
  {
    const Buffer buffer = Buffer::Allocate(256);
    memory = buffer.owner();
    slice = Slice::Of(buffer, 64, 128);
    EXPECT_EQ(slice.data, buffer.data() + 64);
  }
  EXPECT_FALSE(memory.expired());
  slice = Slice();
  EXPECT_TRUE(memory.expired());
}

TEST(Buffer, GatherConcatenatesSlicesInOrder) {
  const char text[] = "abcdef";
  const ByteView bytes = std::as_bytes(std::span(text, 6));
  const Payload payload = {Slice::Borrowed(bytes.subspan(3)), Slice(),
                           Slice::Borrowed(bytes.first(3))};
  EXPECT_EQ(PayloadBytes(payload), 6u);
  const Buffer gathered = Gather(payload);
  EXPECT_EQ(std::memcmp(gathered.data(), "defabc", 6), 0);
}

TEST(BufferPool, GivesBackTheSameMemoryForTheSameSizeClass) {
  BufferPool pool(1 << 20);
  const std::byte* first = nullptr;
  {
    const Buffer buffer = pool.Allocate(100'000);
    EXPECT_TRUE(IsAligned(buffer.data()));
    first = buffer.data();
    EXPECT_EQ(pool.idle_bytes(), 0u);
  }
  EXPECT_GE(pool.idle_bytes(), 100'000u);
  EXPECT_LE(pool.idle_bytes(), 125'000u);
  const Buffer again = pool.Allocate(99'000);
  EXPECT_EQ(again.data(), first);
  EXPECT_EQ(again.size(), 99'000u);
  EXPECT_EQ(pool.idle_bytes(), 0u);
}

TEST(BufferPool, NeverHandsOutMemoryThatIsStillReferredTo) {
  BufferPool pool(1 << 20);
  Buffer buffer = pool.Allocate(8192);
  const Slice in_flight = Slice::Of(buffer);
  buffer = Buffer();
  EXPECT_NE(pool.Allocate(8192).data(), in_flight.data);
}

TEST(BufferPool, KeepsAtMostItsIdleBytes) {
  BufferPool pool(3 * 8192);
  {
    std::vector<Buffer> buffers;
    for (int i = 0; i < 10; ++i) buffers.push_back(pool.Allocate(8192));
  }
  EXPECT_EQ(pool.idle_bytes(), 3u * 8192);
}

TEST(BufferPool, BuffersMayOutliveItAndBeReleasedOnAnotherThread) {
  auto pool = std::make_unique<BufferPool>(1 << 20);
  Buffer outliving = pool->Allocate(65536);
  Buffer moved = pool->Allocate(65536);
  std::thread([released = std::move(moved)]() mutable { released = Buffer(); }).join();
  EXPECT_EQ(pool->idle_bytes(), 65536u);
  pool.reset();
  std::memset(outliving.data(), 1, outliving.size());
}

}  // namespace
}  // namespace syncline
