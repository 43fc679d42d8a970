#include "comm/device/device.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/base/dtype.h"
#include "comm/base/failure.h"
#include "comm/base/tiling.h"
#include "comm/codec/bf16/bf16.h"
#include "comm/codec/fp32/fp32.h"
#include "comm/codec/integer/integer.h"
#include "comm/codec/sign/sign.h"
#include "comm/codec/sparse/sparse.h"
#include "comm/device/device_codec.h"
#include "comm/device/device_for_test.h"
#include "comm/device/device_queue.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;

std::vector<float> Values(size_t count, float scale = 1) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    values[i] = scale * std::sin(static_cast<float>(i * i % 7919));
  }
  return values;
}

// This test must be the first, before the emulated GPU is opened.
TEST(Device, IsNotThereWithoutAModule) {
  ASSERT_EQ(setenv("SYNCLINE_CUDA_MODULE", "/nonexistent/module.so", 1), 0);
  const absl::StatusOr<Device*> device = Device::Open(0);
  EXPECT_TRUE(absl::IsUnavailable(device.status()));
  EXPECT_THAT(std::string(device.status().message()),
              HasSubstr("module at /nonexistent"));
}

TEST(Device, IsNotOpenedWhereNoKernelRuns) {
  Device& first = EmulatedGpu();
  const FailingGpu failing(3);
  const absl::StatusOr<Device*> device = Device::Open(1);
  EXPECT_EQ(device.ok(), false);
  EXPECT_THAT(device.status().ToString(), HasSubstr("CUDA device 1: "));
  EXPECT_THAT(device.status().ToString(), HasSubstr("kernels are for"));
  EXPECT_TRUE(first.ok());
}

TEST(Device, IsOneOfThoseThatThereAre) {
  Device& gpu = EmulatedGpu();
  EXPECT_EQ(&gpu, *Device::Open(0));
  EXPECT_EQ(EmulatedGpu(1).ordinal(), 1);
  const absl::StatusOr<Device*> device = Device::Open(7);
  EXPECT_TRUE(absl::IsInvalidArgument(device.status()));
  EXPECT_THAT(std::string(device.status().message()), HasSubstr("no CUDA device 7"));
  EXPECT_TRUE(absl::IsInvalidArgument(Device::Open(-1).status()));
}

TEST(Device, CopiesOfAnyLength) {
  Device& gpu = EmulatedGpu();
  for (const size_t count : {size_t{0}, size_t{1}, size_t{3'000'000}}) {
    const std::vector<float> values = Values(count);
    EXPECT_EQ(DeviceVector<float>(gpu, values).Get(), values);
  }
  EXPECT_TRUE(gpu.ok());
}

TEST(Device, ClearsAPartOfItsMemory) {
  Device& gpu = EmulatedGpu();
  std::vector<float> values = Values(70'001);
  const DeviceVector<float> there(gpu, values);
  gpu.Clear(there.data() + 3, 0);
  EXPECT_EQ(there.Get(), values);
  gpu.Clear(there.data() + 3, 50'000 * sizeof(float));
  std::fill_n(values.begin() + 3, 50'000, 0.0f);
  EXPECT_EQ(there.Get(), values);
  EXPECT_TRUE(gpu.ok());
}

TEST(DeviceQueue, RoundsAndWidensAsTheCpuDoes) {
  Device& gpu = EmulatedGpu();
  DeviceQueue queue(gpu);
  const std::vector<float> values = Values(70'001);
  const ByteView rounded =
      queue.ToBf16(DeviceVector<float>(gpu, values).data(), values.size());
  ASSERT_EQ(rounded.size(), values.size() * 2);
  std::vector<float> expected(values.size());
  const auto codec = MakeBf16Codec();
  ASSERT_TRUE(codec->Decode(rounded, expected).ok());
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(expected[i], FloatFromBf16(Bf16FromFloat(values[i])));
  }
  const std::vector<std::byte> bytes(rounded.begin(), rounded.end());
  DeviceVector<float> widened(gpu, values);
  const ByteView whole = bytes;
  const std::vector<ByteView> parts = {whole.first(1000), whole.subspan(1000)};
  queue.FromBf16(parts, widened.data());
  EXPECT_EQ(widened.Get(), expected);
}

TEST(DeviceQueue, FetchesABlockAndPutsOneThereInParts) {
  Device& gpu = EmulatedGpu();
  DeviceQueue queue(gpu);
  const std::vector<float> values = Values(70'001);
  const ByteView fetched =
      queue.Fetch(DeviceVector<float>(gpu, values).data(), values.size() * sizeof(float));
  EXPECT_TRUE(std::ranges::equal(fetched, std::as_bytes(std::span(values))));
  DeviceVector<float> there(gpu, std::vector<float>(values.size()));
  const ByteView whole = std::as_bytes(std::span(values));
  const std::vector<ByteView> parts = {whole.first(1000), {}, whole.subspan(1000)};
  queue.Put(parts, there.data());
  EXPECT_EQ(there.Get(), values);
}

using SharedCodec = std::shared_ptr<const Codec>;

SharedCodec TopK(double ratio, SharedCodec values) {
  return *MakeSparseCodec(
      {.selector = {.ratio = ratio}, .values = values, .also_decoded = {values}});
}
SharedCodec Fp32() { return MakeFp32Codec(); }
SharedCodec Bf16() { return MakeBf16Codec(); }

struct Named {
  const char* name = nullptr;
  SharedCodec codec = nullptr;
};
const Named kOnDevice[] = {
    {"sign", MakeSignCodec({.block_log2 = 11})},
    {"int8", MakeIntegerCodec({})},
    {"stochastic", MakeIntegerCodec({.rounding = IntegerRounding::kStochastic})},
    {"topk", TopK(0.01, Fp32())},
    {"topk_bf16", TopK(0.02, Bf16())},
    {"topk_many", TopK(0.2, Fp32())},  // a bitmap is smaller than a list
    {"topk_all", TopK(1, Fp32())}};

class CodecOnDevice : public ::testing::TestWithParam<Named> {
 protected:
  static constexpr uint32_t kElements = 2 * kTileElements + 300;
  static constexpr EncodeContext kContext = {.seed = 5, .step = 3, .tensor = 2};

  const Codec& codec() const { return *GetParam().codec; }
  // Returns the CPU's encoding of a tile; `values` become the residual.
  std::vector<std::byte> OnCpu(std::span<float> values, uint64_t first_element) const {
    std::vector<std::byte> bytes(
        codec().MaxEncodedBytes(static_cast<uint32_t>(values.size())));
    EncodeContext context = kContext;
    context.first_element = first_element;
    bytes.resize(codec().Encode(values, values, context, bytes));
    return bytes;
  }
  // Returns the GPU's encodings of all tiles, as they are sent.
  std::vector<std::vector<std::byte>> Encode(std::span<const float> values,
                                             DeviceVector<float>& residual) {
    const DeviceVector<float> gradient(gpu_, values);
    std::vector<std::vector<std::byte>> encoded;
    for (const ByteView tile :
         queue_.Encode(*EncoderOnDevice(codec()),
                       {.gradient = gradient.data(),
                       .residual = residual.data(),
                       .elements = values.size(),
                       .now = {.seed = kContext.seed, .step = kContext.step},
                       .tensor = kContext.tensor})) {
      encoded.emplace_back(tile.begin(), tile.end());
    }
    for (uint32_t i = 0; i < encoded.size() && codec().id() == CodecId::kSparse; ++i) {
      const uint32_t elements = TileElements(values.size(), i);
      std::vector<std::byte> smallest(codec().MaxEncodedBytes(elements));
      smallest.resize(*WithSmallestPositions(encoded[i], elements, smallest));
      encoded[i] = smallest;
    }
    return encoded;
  }

  Device& gpu_ = EmulatedGpu();
  DeviceQueue queue_{gpu_};
};

INSTANTIATE_TEST_SUITE_P(Codecs, CodecOnDevice, ::testing::ValuesIn(kOnDevice),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(CodecOnDevice, EncodesToTheBytesOfTheCpu) {
  std::vector<float> values = Values(kElements);
  DeviceVector<float> residual(gpu_, std::vector<float>(kElements));
  const auto encoded = Encode(values, residual);
  ASSERT_EQ(encoded.size(), TilesOf(kElements));
  for (uint32_t i = 0; i < encoded.size(); ++i) {
    const size_t first = size_t{i} * kTileElements;
    const std::span<float> tile =
        std::span(values).subspan(first, TileElements(kElements, i));
    EXPECT_EQ(encoded[i], OnCpu(tile, first)) << i;
  }
  EXPECT_EQ(residual.Get(), values);
}

TEST_P(CodecOnDevice, AddsWhatTheCpuAdds) {
  std::vector<float> weights = Values(kElements, 3);
  DeviceVector<float> on_device(gpu_, weights);
  std::vector<std::vector<std::byte>> tiles;
  std::vector<std::vector<std::byte>> memories(TilesOf(kElements));
  std::vector<ByteView> readable;
  std::vector<float> values = Values(kElements);
  std::fill_n(values.begin(), kTileElements, 0.0f);
  for (uint32_t i = 0; i < TilesOf(kElements); ++i) {
    const size_t first = size_t{i} * kTileElements;
    const uint32_t elements = TileElements(kElements, i);
    tiles.push_back(OnCpu(std::span(values).subspan(first, elements), first));
    ASSERT_TRUE(
        codec().DecodeAdd(tiles[i], 1, std::span(weights).subspan(first, elements)).ok());
  }
  for (uint32_t i = 0; i < tiles.size(); ++i) {
    const auto bytes =
        ReadableOnDevice(codec(), tiles[i], TileElements(kElements, i), memories[i]);
    ASSERT_TRUE(bytes.has_value());
    readable.push_back(*bytes);
  }
  EXPECT_TRUE(
      queue_.DecodeAdd(*DecoderOnDevice(codec()), readable, on_device.data(), kElements));
  EXPECT_EQ(on_device.Get(), weights);
}

TEST_P(CodecOnDevice, LeavesTilesAloneThatAreNotFinite) {
  std::vector<float> values = Values(kElements);
  values[kTileElements + 7] = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> kept(kElements, 0.5f);
  DeviceVector<float> residual(gpu_, kept);
  const DeviceVector<float> gradient(gpu_, values);
  const auto tiles = queue_.Encode(
      *EncoderOnDevice(codec()),
      {.gradient = gradient.data(), .residual = residual.data(), .elements = kElements});
  EXPECT_FALSE(tiles[0].empty());
  EXPECT_TRUE(tiles[1].empty());
  EXPECT_FALSE(tiles[2].empty());
  EXPECT_EQ(residual.Get()[kTileElements + 8], 0.5f);
}

TEST_P(CodecOnDevice, RefusesBytesThatAreNoEncoding) {
  const std::vector<std::byte> bad(3, std::byte{0xff});
  DeviceVector<float> weights(gpu_, std::vector<float>(100, 1.0f));
  const std::vector<ByteView> tiles = {bad};
  EXPECT_FALSE(queue_.DecodeAdd(*DecoderOnDevice(codec()), tiles, weights.data(), 100));
  EXPECT_EQ(weights.Get(), std::vector<float>(100, 1.0f));
}

TEST(DeviceCodec, IsNotThereForOtherEncodings) {
  const SharedCodec others[] = {
      MakeSignCodec({.scale = SignScale::kOne}),
      MakeIntegerCodec({.bits = 4}),
      MakeIntegerCodec(
          {.rounding = IntegerRounding::kStochastic, .range = IntegerRange::kL2}),
      TopK(0.01, MakeIntegerCodec({})),
      *MakeSparseCodec({.selector = {.kind = SelectorKind::kRandomK}, .values = Fp32()}),
      *MakeSparseCodec({.selector = {.scope = SelectorScope::kTensor}, .values = Fp32()}),
      Fp32(),
      Bf16()};
  for (const SharedCodec& codec : others) {
    EXPECT_FALSE(EncoderOnDevice(*codec).has_value()) << codec->name();
  }
  EXPECT_FALSE(DecoderOnDevice(*Fp32()).has_value());
  std::vector<std::byte> memory;
  std::vector<std::byte> bytes(20'000);
  const std::vector<float> values = Values(1000);
  bytes.resize(others[3]->Encode(values, {}, {}, bytes));
  EXPECT_FALSE(ReadableOnDevice(*others[3], bytes, 1000, memory).has_value());
}

// Queues of several threads, each with its own part of one array.
TEST(DeviceQueue, OfEachThreadIsItsOwn) {
  constexpr uint32_t kThreads = 4;
  constexpr uint32_t kRounds = 10;
  Device& gpu = EmulatedGpu();
  const std::vector<float> values = Values(size_t{kThreads} * kTileElements);
  const DeviceVector<float> gradient(gpu, values);
  DeviceVector<float> sum(gpu, std::vector<float>(values.size()));
  const SharedCodec codec = MakeIntegerCodec({});
  std::vector<std::thread> threads;
  for (uint32_t number = 0; number < kThreads; ++number) {
    threads.emplace_back([&, number] {
      DeviceQueue queue(gpu);
      const size_t first = size_t{number} * kTileElements;
      for (uint32_t round = 0; round < kRounds; ++round) {
        const auto tiles = queue.Encode(
            *EncoderOnDevice(*codec),
            {.gradient = gradient.data() + first, .elements = kTileElements});
        const std::vector<std::byte> tile(tiles[0].begin(), tiles[0].end());
        const std::vector<ByteView> one = {tile};
        EXPECT_TRUE(queue.DecodeAdd(*DecoderOnDevice(*codec), one, sum.data() + first,
                                    kTileElements));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<float> expected(values.size());
  for (uint32_t number = 0; number < kThreads; ++number) {
    const size_t first = size_t{number} * kTileElements;
    std::vector<std::byte> bytes(codec->MaxEncodedBytes(kTileElements));
    bytes.resize(
        codec->Encode(std::span(values).subspan(first, kTileElements), {}, {}, bytes));
    for (uint32_t round = 0; round < kRounds; ++round) {
      ASSERT_TRUE(
          codec->DecodeAdd(bytes, 1, std::span(expected).subspan(first, kTileElements))
              .ok());
    }
  }
  EXPECT_EQ(sum.Get(), expected);
}

TEST(Device, KeepsItsFirstErrorAndDoesNothingAfterwards) {
  Device gpu(EmulatedGpu().calls(), 0);
  Device& other = EmulatedGpu(1);
  DeviceQueue queue(gpu);
  const std::vector<float> values = Values(1000);
  const DeviceVector<float> gradient(EmulatedGpu(), values);
  const FailingGpu failing;
  std::vector<float> read(1000, 7);
  gpu.Read(gradient.data(), std::as_writable_bytes(std::span(read)));
  EXPECT_EQ(read, std::vector<float>(1000));
  EXPECT_TRUE(absl::IsUnavailable(gpu.status()));
  EXPECT_THAT(std::string(gpu.status().message()),
              HasSubstr("CUDA device 0: copying to the host"));
  EXPECT_EQ(FailureOf(gpu.status()), Failure::kDeviceFailed);
  const absl::Status first = gpu.status();
  EXPECT_TRUE(queue.ToBf16(gradient.data(), 1000).empty());
  EXPECT_TRUE(queue.Encode({.id = 5}, {.gradient = gradient.data(), .elements = 1000})[0]
                  .empty());
  EXPECT_EQ(gpu.status(), first);
  EXPECT_TRUE(other.ok());
}

}  // namespace
}  // namespace syncline
