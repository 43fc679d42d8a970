// Tests streams and memory on a runtime that fails on demand: what errors leave behind,
// whose errors are reported, and which device is used.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "comm/codec/cuda/fake/runtime.h"
// This follows the runtime that it uses.
#include "comm/codec/cuda/memory_calls.h"

namespace syncline::gpu {
namespace {

constexpr int kDevice = 1;
constexpr int kCurrent = 2;
constexpr size_t kBytes = 1000;

class DeviceMemory : public testing::Test {
 protected:
  DeviceMemory() {
    runtime() = {};
    runtime().devices = 3;
    runtime().current_device = kCurrent;
  }
  // After each test nothing may be left allocated, no error may be pending, and the
  // current device must be the previous one.
  ~DeviceMemory() override {
    EXPECT_TRUE(runtime().alive.empty());
    EXPECT_EQ(runtime().last_error, cudaSuccess);
    EXPECT_EQ(runtime().current_device, kCurrent);
    runtime() = {};
  }
  static fake::Runtime& runtime() { return fake::TheRuntime(); }

  void MakeStream() { ASSERT_EQ(CreateStream(kDevice, &stream_), kSuccess); }
  void DropStream() { EXPECT_EQ(DestroyStream(kDevice, stream_), kSuccess); }

  void* stream_ = nullptr;
  void* memory_ = nullptr;
};

TEST_F(DeviceMemory, IsZeros) {
  ASSERT_EQ(AllocateZeros(kDevice, kBytes, &memory_), kSuccess);
  const auto* const bytes = static_cast<const unsigned char*>(memory_);
  EXPECT_TRUE(std::all_of(bytes, bytes + kBytes, [](int byte) { return byte == 0; }));
  EXPECT_EQ(Free(kDevice, memory_), kSuccess);
}

TEST_F(DeviceMemory, LiesOnTheDeviceThatWasNamed) {
  ASSERT_EQ(AllocateZeros(kDevice, kBytes, &memory_), kSuccess);
  EXPECT_EQ(runtime().alive.at(memory_), kDevice);
  EXPECT_EQ(runtime().device_of_last_work, kDevice);
  EXPECT_EQ(runtime().current_device, kCurrent);
  EXPECT_EQ(Free(kDevice, memory_), kSuccess);
  ASSERT_EQ(AllocatePageLocked(kDevice, kBytes, &memory_), kSuccess);
  EXPECT_EQ(runtime().alive.at(memory_), kDevice);
  EXPECT_EQ(FreePageLocked(kDevice, memory_), kSuccess);
}

TEST_F(DeviceMemory, IsNullWhereAllocatingFails) {
  for (const auto allocate : {&AllocateZeros, &AllocatePageLocked}) {
    memory_ = this;
    runtime().failing_creation = 1;
    EXPECT_EQ(allocate(kDevice, kBytes, &memory_), cudaErrorMemoryAllocation);
    EXPECT_EQ(memory_, nullptr);
    EXPECT_EQ(allocate(kDevice, kBytes, nullptr), kInvalidValue);
    EXPECT_EQ(allocate(3, kBytes, &memory_), cudaErrorInvalidDevice);
    EXPECT_EQ(allocate(kDevice, 0, &memory_), kSuccess);
    EXPECT_EQ(memory_, nullptr);
  }
}

TEST_F(DeviceMemory, IsFreedWhenItCannotBeCleared) {
  runtime().next_error = cudaErrorIllegalAddress;
  EXPECT_EQ(AllocateZeros(kDevice, kBytes, &memory_), cudaErrorIllegalAddress);
  EXPECT_EQ(memory_, nullptr);
  runtime().kernel_error = cudaErrorIllegalAddress;
  EXPECT_EQ(AllocateZeros(kDevice, kBytes, &memory_), cudaErrorIllegalAddress);
  EXPECT_EQ(memory_, nullptr);
}

TEST_F(DeviceMemory, IsFreedOnce) {
  ASSERT_EQ(AllocateZeros(kDevice, kBytes, &memory_), kSuccess);
  EXPECT_EQ(Free(3, memory_), cudaErrorInvalidDevice);
  EXPECT_EQ(Free(kDevice, memory_), kSuccess);
  EXPECT_EQ(Free(kDevice, memory_), kInvalidValue);
  EXPECT_EQ(Free(kDevice, nullptr), kSuccess);
  EXPECT_EQ(FreePageLocked(kDevice, nullptr), kSuccess);
}

TEST_F(DeviceMemory, IsCopiedAndCleared) {
  MakeStream();
  std::array<int, 3> from = {1, 2, 3};
  std::array<int, 3> to = {};
  const auto copy = [&](size_t bytes, const void* source) {
    return Copy(kDevice, {.to = to.data(), .from = source, .bytes = bytes}, stream_);
  };
  EXPECT_EQ(copy(sizeof(from), from.data()), kSuccess);
  EXPECT_EQ(to, from);
  EXPECT_EQ(runtime().device_of_last_work, kDevice);
  EXPECT_EQ(Clear(kDevice, to.data(), 2 * sizeof(int), stream_), kSuccess);
  EXPECT_EQ(to, (std::array<int, 3>{0, 0, 3}));
  EXPECT_EQ(copy(0, nullptr), kSuccess);
  EXPECT_EQ(copy(1, nullptr), kInvalidValue);
  EXPECT_EQ(Clear(kDevice, nullptr, 1, stream_), kInvalidValue);
  EXPECT_EQ(Clear(kDevice, to.data(), 1, nullptr), kInvalidValue);
  EXPECT_EQ(Copy(kDevice, {.to = &to, .from = &from, .bytes = 1}, nullptr),
            kInvalidValue);
  DropStream();
}

TEST_F(DeviceMemory, StreamNeverWaitsForTheDefaultStreamAndItsThreadSleeps) {
  MakeStream();
  EXPECT_FALSE(runtime().stream_waits_for_others);
  EXPECT_TRUE(runtime().event_sleeps);
  EXPECT_EQ(WaitForStream(kDevice, stream_), kSuccess);
  EXPECT_EQ(runtime().device_of_last_work, kDevice);
  DropStream();
}

TEST_F(DeviceMemory, StreamIsNullAndLeavesNothingWhereCreatingItFails) {
  for (const uint32_t failing : {1, 2}) {
    stream_ = this;
    runtime().failing_creation = failing;
    EXPECT_EQ(CreateStream(kDevice, &stream_), cudaErrorMemoryAllocation) << failing;
    EXPECT_EQ(stream_, nullptr);
    EXPECT_TRUE(runtime().alive.empty());
  }
  EXPECT_EQ(CreateStream(3, &stream_), cudaErrorInvalidDevice);
  EXPECT_EQ(CreateStream(kDevice, nullptr), kInvalidValue);
  EXPECT_EQ(DestroyStream(kDevice, nullptr), kSuccess);
  EXPECT_EQ(WaitForStream(kDevice, nullptr), kInvalidValue);
}

TEST_F(DeviceMemory, StreamIsThereUntilADeviceThatExistsDestroysIt) {
  MakeStream();
  EXPECT_EQ(DestroyStream(3, stream_), cudaErrorInvalidDevice);
  EXPECT_EQ(WaitForStream(kDevice, stream_), kSuccess);
  DropStream();
}

TEST_F(DeviceMemory, WaitSaysWhatKernelsDidWrong) {
  MakeStream();
  runtime().kernel_error = cudaErrorIllegalAddress;
  EXPECT_EQ(WaitForStream(kDevice, stream_), cudaErrorIllegalAddress);
  EXPECT_EQ(runtime().last_error, cudaSuccess);
  runtime().next_error = cudaErrorInitializationError;
  EXPECT_EQ(WaitForStream(kDevice, stream_), cudaErrorInitializationError);
  EXPECT_EQ(WaitForStream(kDevice, stream_), kSuccess);
  DropStream();
}

// Another library of the process may have left an error in this thread.
TEST_F(DeviceMemory, TakesNoErrorOfOthersForItsOwnAndLeavesItThere) {
  runtime().last_error = cudaErrorInitializationError;
  MakeStream();
  int word = 7;
  EXPECT_EQ(AllocateZeros(kDevice, kBytes, &memory_), kSuccess);
  EXPECT_EQ(Copy(kDevice, {.to = memory_, .from = &word, .bytes = sizeof(word)}, stream_),
            kSuccess);
  EXPECT_EQ(Clear(kDevice, memory_, kBytes, stream_), kSuccess);
  EXPECT_EQ(WaitForStream(kDevice, stream_), kSuccess);
  EXPECT_EQ(Free(kDevice, memory_), kSuccess);
  EXPECT_EQ(AllocatePageLocked(kDevice, kBytes, &memory_), kSuccess);
  EXPECT_EQ(FreePageLocked(kDevice, memory_), kSuccess);
  DropStream();
  EXPECT_EQ(runtime().last_error, cudaErrorInitializationError);
  runtime().last_error = cudaSuccess;
}

TEST_F(DeviceMemory, ThreadThatUsesADeviceKeepsIt) {
  EXPECT_EQ(UseDevice(kDevice), kSuccess);
  EXPECT_EQ(runtime().current_device, kDevice);
  MakeStream();
  EXPECT_EQ(runtime().current_device, kDevice);
  EXPECT_EQ(UseDevice(3), cudaErrorInvalidDevice);
  EXPECT_EQ(runtime().last_error, cudaSuccess);
  DropStream();
  runtime().current_device = kCurrent;
}

TEST_F(DeviceMemory, CallThatFailsDoesNothing) {
  MakeStream();
  int from = 7;
  int to = 8;
  runtime().next_error = cudaErrorIllegalAddress;
  EXPECT_EQ(Copy(kDevice, {.to = &to, .from = &from, .bytes = sizeof(to)}, stream_),
            cudaErrorIllegalAddress);
  runtime().next_error = cudaErrorIllegalAddress;
  EXPECT_EQ(Clear(kDevice, &to, sizeof(to), stream_), cudaErrorIllegalAddress);
  EXPECT_EQ(Clear(3, &to, sizeof(to), stream_), cudaErrorInvalidDevice);
  EXPECT_EQ(to, 8);
  DropStream();
}

}  // namespace
}  // namespace syncline::gpu
