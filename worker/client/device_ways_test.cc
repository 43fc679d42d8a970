#include "worker/client/device_ways.h"

#include <string>
#include <vector>

#include "comm/device/device.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

class DeviceWays : public ::testing::Test {
 protected:
  PlacedTensor There(const std::string& push, const std::string& publish,
                     DType dtype = DType::kF32) {
    return {.memory = {.dtype = dtype, .device = &gpu_},
            .transfers = {*ParseTransfer(push), *ParseTransfer(publish)}};
  }
  std::string Said(const std::string& push, const std::string& publish,
                   DType dtype = DType::kF32) {
    return DescribeDeviceWays({{There(push, publish, dtype)}}, {push, publish});
  }

  Device gpu_{DeviceCalls{}, 0};  // nothing calls it
};

constexpr char kAllThere[] = "on the GPU (1 tensor)";
std::string NoKernelFor(const std::string& what) {
  return "on the CPU (1 tensor of a GPU by way of the host: no kernel for " + what + ")";
}

TEST_F(DeviceWays, AreNoneWithoutTensorsOnAGpu) {
  EXPECT_EQ(DescribeDeviceWays({}, {}), "");
  PlacedTensor on_host = There("int4", "int4");
  on_host.memory.device = nullptr;
  EXPECT_EQ(DescribeDeviceWays({{on_host}}, {}), "");
}

// on_device_test.cc proves that these codecs have kernels.
TEST_F(DeviceWays, OfCodecsThatHaveKernelsAreOnTheGpu) {
  for (const char* const codec :
       {"fp32", "bf16", "onebit", "int8", "int8-stochastic", "topk:ratio=0.01",
        "topk:ratio=0.02,values=bf16", "topk:ratio=0.3,values=fp32"}) {
    EXPECT_EQ(Said(codec, codec), kAllThere) << codec;
  }
}

TEST_F(DeviceWays, OfOtherCodecsAreByWayOfTheHostOnTheSideThatHasNone) {
  for (const char* const codec : {"fp16", "int4", "topk:ratio=0.01,values=int8"}) {
    EXPECT_EQ(Said(codec, "bf16"), NoKernelFor(std::string("push ") + codec));
    EXPECT_EQ(Said("bf16", codec), NoKernelFor(std::string("publish ") + codec));
  }
  EXPECT_EQ(Said("auto", "bf16"), NoKernelFor("push auto, but for its int8 and onebit"));
  // A GPU could decode these values, but their error feedback is on the host.
  EXPECT_EQ(Said("dgc:ratio=0.01", "bf16"), NoKernelFor("push dgc:ratio=0.01"));
}

TEST_F(DeviceWays, GoByTheElementTypeOfTheWeights) {
  EXPECT_EQ(Said("bf16", "bf16", DType::kBf16), kAllThere);
  EXPECT_EQ(Said("fp16", "fp16", DType::kF16), kAllThere);
  EXPECT_EQ(Said("int8", "bf16", DType::kBf16), kAllThere);
  EXPECT_EQ(Said("fp32", "bf16", DType::kBf16), NoKernelFor("push fp32"));
  EXPECT_EQ(Said("bf16", "fp16", DType::kBf16), NoKernelFor("publish fp16"));
  EXPECT_EQ(Said("int8", "int8", DType::kBf16),
            NoKernelFor("publish int8 into bfloat16 weights"));
}

TEST_F(DeviceWays, OfFrozenTensorsNeedNoKernels) {
  PlacedTensor frozen = There("int4", "int4");
  frozen.frozen = true;
  EXPECT_EQ(DescribeDeviceWays({{frozen}}, {}), kAllThere);
}

TEST_F(DeviceWays, AreCounted) {
  const std::vector<PlacedTensor> tensors = {There("int8", "int8"), There("bf16", "bf16"),
                                             There("int8", "bf16"), There("int4", "int4"),
                                             There("int4", "int8")};
  EXPECT_EQ(
      DescribeDeviceWays(tensors, {.push = "int8@a*;int4", .publish = "int8@b*;int4"}),
      "on the GPU (3 tensors; 2 more by way of the host: no kernel for publish "
      "int4, push int4)");
}

}  // namespace
}  // namespace syncline
