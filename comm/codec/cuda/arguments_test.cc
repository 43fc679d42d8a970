// Tests the arguments that the functions of codecs.h refuse before they enqueue anything.
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "comm/codec/cuda/codecs_for_test.h"
#include "comm/codec/cuda/emulator/codecs_emulated.h"

namespace syncline {
namespace {

constexpr int kInvalidValue = 1;  // cudaErrorInvalidValue
constexpr uint64_t kElements = 100;
constexpr SynclineCudaCodec kSign = {.id = 5};

// Arrays of the right sizes.
struct Arrays {
  std::vector<Line> gradient = std::vector<Line>(7);
  std::vector<float> residual = std::vector<float>(kElements + 4);
  std::vector<Line> out = std::vector<Line>(emulated::TileStride(kSign) / sizeof(Line));
  std::vector<Line> workspace =
      std::vector<Line>(emulated::WorkspaceBytes(kSign, kElements) / sizeof(Line));
  uint32_t tile_bytes = 0;
  uint32_t refused = 7;

  SynclineCudaEncoding Encoding() {
    return {.gradient = gradient.data(),
            .residual = reinterpret_cast<float*>(gradient.data()),
            .elements = kElements,
            .out = out.data(),
            .tile_bytes = &tile_bytes,
            .workspace = workspace.data()};
  }
  SynclineCudaDecoding Decoding() {
    return {.bytes = out.data(),
            .tile_bytes = &tile_bytes,
            .stride = emulated::TileStride(kSign),
            .accumulator = reinterpret_cast<float*>(gradient.data()),
            .elements = kElements,
            .refused = &refused};
  }
};

template <typename T>
T* OffBy(T* pointer, size_t bytes) {
  return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(pointer) + bytes);
}

TEST(CudaArguments, OfAnEncodingAreRefusedWhenTheyAreNullOrMisaligned) {
  using Encoding = SynclineCudaEncoding;
  const std::vector<std::function<void(Encoding&)>> bad = {
      [](Encoding& e) { e.gradient = nullptr; },
      [](Encoding& e) { e.out = nullptr; },
      [](Encoding& e) { e.tile_bytes = nullptr; },
      [](Encoding& e) { e.workspace = nullptr; },
      [](Encoding& e) { e.gradient = OffBy(static_cast<const float*>(e.gradient), 4); },
      [](Encoding& e) { e.out = OffBy(static_cast<char*>(e.out), 16); },
      [](Encoding& e) { e.tile_bytes = OffBy(e.tile_bytes, 2); },
      [](Encoding& e) { e.workspace = OffBy(static_cast<char*>(e.workspace), 8); },
      [](Encoding& e) { e.residual = OffBy(e.residual, 4); },
      [](Encoding& e) { e.now_on_device = OffBy(&e.now, 4); },
      [](Encoding& e) { e.tile_units = OffBy(&e.now.units, 2); },
      [](Encoding& e) { e.dtype = 0; },
      [](Encoding& e) { e.dtype = 4; },
      [](Encoding& e) { e.struct_bytes += 8; },
  };
  Arrays arrays;
  emulated::EmulatedStream stream;
  ASSERT_EQ(emulated::Encode(kSign, arrays.Encoding(), stream), 0);
  for (size_t i = 0; i < bad.size(); ++i) {
    Encoding encoding = arrays.Encoding();
    bad[i](encoding);
    EXPECT_EQ(emulated::Encode(kSign, encoding, stream), kInvalidValue) << i;
  }
}

TEST(CudaArguments, OfADecodingAreRefusedWhenTheyAreNullOrMisaligned) {
  using Decoding = SynclineCudaDecoding;
  const std::vector<std::function<void(Decoding&)>> bad = {
      [](Decoding& d) { d.bytes = nullptr; },
      [](Decoding& d) { d.tile_bytes = nullptr; },
      [](Decoding& d) { d.accumulator = nullptr; },
      [](Decoding& d) { d.refused = nullptr; },
      [](Decoding& d) { d.bytes = OffBy(static_cast<const char*>(d.bytes), 16); },
      [](Decoding& d) { d.accumulator = OffBy(d.accumulator, 4); },
      [](Decoding& d) { d.stride += 4; },
      [](Decoding& d) { d.struct_bytes -= 8; },
  };
  Arrays arrays;
  emulated::EmulatedStream stream;
  ASSERT_EQ(emulated::DecodeAdd(kSign, arrays.Decoding(), stream), 0);
  for (size_t i = 0; i < bad.size(); ++i) {
    Decoding decoding = arrays.Decoding();
    bad[i](decoding);
    EXPECT_EQ(emulated::DecodeAdd(kSign, decoding, stream), kInvalidValue) << i;
  }
}

TEST(CudaArguments, NameTheDevice) {
  constexpr int kInvalidDevice = 101;  // cudaErrorInvalidDevice
  Arrays arrays;
  emulated::EmulatedStream stream;
  for (const int32_t device : {-1, 0, 1}) {
    SynclineCudaEncoding encoding = arrays.Encoding();
    SynclineCudaDecoding decoding = arrays.Decoding();
    encoding.device = device;
    decoding.device = device;
    const int expected = device <= 0 ? 0 : kInvalidDevice;
    EXPECT_EQ(emulated::Encode(kSign, encoding, stream), expected);
    EXPECT_EQ(emulated::DecodeAdd(kSign, decoding, stream), expected);
  }
}

TEST(CudaArguments, MayBeNullWhereThereAreNoElements) {
  emulated::EmulatedStream stream;
  EXPECT_EQ(emulated::Encode(kSign, {}, stream), 0);
  EXPECT_EQ(emulated::DecodeAdd(kSign, {}, stream), 0);
  EXPECT_EQ(emulated::DecodeAdd({.id = 9}, {}, stream), kInvalidValue);
}

}  // namespace
}  // namespace syncline
