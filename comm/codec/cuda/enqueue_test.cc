// Tests errors and the current device on a runtime that fails on demand.
#include <gtest/gtest.h>

#include "comm/codec/cuda/fake/runtime.h"
// These follow the runtime that they use.
#include "comm/codec/cuda/device_present.h"
#include "comm/codec/cuda/enqueue.h"

namespace syncline::gpu {
namespace {

class Enqueueing : public testing::Test {
 protected:
  ~Enqueueing() override { runtime() = {}; }
  static fake::Runtime& runtime() { return fake::TheRuntime(); }

  int Launch() { return LaunchGrid({.kernel = &word_}, nullptr, nullptr); }
  int Clear() { return ClearAsync(&word_, sizeof(word_), nullptr); }

  uint32_t word_ = 7;
};

// An earlier error must not be reported for a kernel that runs: the caller would run it
// again.
TEST_F(Enqueueing, LeavesNoErrorForTheNextCall) {
  runtime().next_error = cudaErrorInitializationError;
  EXPECT_EQ(Clear(), cudaErrorInitializationError);
  EXPECT_EQ(word_, 7u);
  EXPECT_EQ(runtime().last_error, cudaSuccess);
  EXPECT_EQ(Launch(), kSuccess);
  EXPECT_EQ(runtime().launches, 1u);
  runtime().next_error = cudaErrorInvalidDevice;
  EXPECT_EQ(Launch(), cudaErrorInvalidDevice);
  EXPECT_EQ(runtime().launches, 1u);
  EXPECT_EQ(Clear(), kSuccess);
  EXPECT_EQ(word_, 0u);
}

TEST_F(Enqueueing, DoesNotTakeAnErrorOfOthersForItsOwn) {
  runtime().last_error = cudaErrorInitializationError;
  EXPECT_EQ(Clear(), kSuccess);
  EXPECT_EQ(Launch(), kSuccess);
  EXPECT_EQ(runtime().launches, 1u);
  EXPECT_EQ(runtime().last_error, cudaErrorInitializationError);
}

TEST_F(Enqueueing, HappensOnTheDeviceThatWasNamed) {
  runtime().devices = 3;
  runtime().current_device = 2;
  {
    const DeviceGuard guard(1);
    EXPECT_EQ(guard.error(), kSuccess);
    EXPECT_EQ(runtime().current_device, 1);
  }
  EXPECT_EQ(runtime().current_device, 2);
  {
    const DeviceGuard guard(-1);
    EXPECT_EQ(guard.error(), kSuccess);
    EXPECT_EQ(runtime().current_device, 2);
  }
  {
    const DeviceGuard guard(3);
    EXPECT_EQ(guard.error(), cudaErrorInvalidDevice);
  }
  EXPECT_EQ(runtime().current_device, 2);
  EXPECT_EQ(runtime().last_error, cudaSuccess);
}

TEST_F(Enqueueing, IsRefusedWhileAStreamCapturesIfItMustNot) {
  cudaStream_t stream = nullptr;
  cudaStreamCreate(&stream);
  EXPECT_EQ(MustNotCapture(stream), kSuccess);
  cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
  EXPECT_EQ(MustNotCapture(stream), cudaErrorStreamCaptureUnsupported);
  cudaGraph_t graph = nullptr;
  cudaStreamEndCapture(stream, &graph);
  EXPECT_EQ(MustNotCapture(stream), kSuccess);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

// Checks may be skipped only on a machine without a device or without a driver.
TEST_F(Enqueueing, NeedsADeviceThatIsThereToWork) {
  runtime().devices = 2;
  EXPECT_EQ(FindDevice(), DevicePresence::kPresent);
  runtime().devices = 0;
  EXPECT_EQ(FindDevice(), DevicePresence::kAbsent);
  runtime().start_error = cudaErrorNoDevice;
  EXPECT_EQ(FindDevice(), DevicePresence::kAbsent);
  runtime().start_error = cudaErrorInitializationError;
  EXPECT_EQ(FindDevice(), DevicePresence::kBroken);
  runtime().start_error = cudaErrorInsufficientDriver;
  EXPECT_EQ(FindDevice(), DevicePresence::kBroken);
  runtime().driver_version = 0;
  EXPECT_EQ(FindDevice(), DevicePresence::kAbsent);
}

}  // namespace
}  // namespace syncline::gpu
