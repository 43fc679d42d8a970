// Measures the codecs on a device and the device's copy bandwidth, and writes JSON. At
// the end it measures the 161 tensors of ResNet-50 one by one; most are far smaller than
// a tile:
//
//   cuda_codecs_bench [ELEMENTS [ROUNDS]]       268,435,456 and 11 by default
//
// "share_of_copy" is the rate of bytes moved relative to a copy. Encoding moves the
// gradient read, the residual read and written, and the bytes written; decoding the
// accumulator read and written, and the bytes read. "copies" is the time in units of a
// copy of the gradient, which reads and writes 4 bytes of each element. The first tile is
// compared with the emulated GPU. Exits with 77 if there is no device.
#include <algorithm>
#include <cstring>
#include <random>

#include "comm/base/dtype.h"
#include "comm/base/tiling.h"
#include "comm/codec/cuda/device_array.cuh"
#include "comm/codec/cuda/device_present.h"
#include "comm/codec/cuda/emulator/codecs_emulated.h"

namespace syncline {
namespace {

#ifndef SYNCLINE_CUDA_BLOCKS
#define SYNCLINE_CUDA_BLOCKS 4
#endif
constexpr uint64_t kDefaultElements = uint64_t{1} << 28;
constexpr uint64_t kDefaultRounds = 11;

struct NamedCodec {
  const char* name;
  SynclineCudaCodec codec;
};
constexpr NamedCodec kCodecs[] = {
    {"sign", {.id = 5}},
    {"int8", {.id = 6, .block_log2 = 10}},
    {"int8:rounding=stochastic", {.id = 6, .block_log2 = 10, .stochastic = 1}},
    {"topk:ratio=0.01,values=fp32", {.id = 16}},
    {"topk:ratio=0.01,values=bf16", {.id = 16, .values = 2}},
};

// Returns the median milliseconds of `enqueue`, after one round of warm-up.
template <typename Enqueue>
double Milliseconds(uint64_t rounds, cudaStream_t stream, Enqueue enqueue) {
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  Must(cudaEventCreate(&begin), "event");
  Must(cudaEventCreate(&end), "event");
  std::vector<float> times;
  for (uint64_t round = 0; round <= rounds; ++round) {
    Must(cudaEventRecord(begin, stream), "event");
    enqueue();
    Must(cudaEventRecord(end, stream), "event");
    Must(cudaEventSynchronize(end), "kernels");
    float milliseconds = 0;
    Must(cudaEventElapsedTime(&milliseconds, begin, end), "event");
    if (round > 0) times.push_back(milliseconds);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  std::ranges::sort(times);
  return times[times.size() / 2];
}

// Returns the sizes of its tensors: each convolution with the two vectors of its
// normalisation, then the classifier.
std::vector<uint64_t> ResNet50() {
  std::vector<uint64_t> tensors;
  const auto add = [&tensors](uint64_t weights, uint64_t channels) {
    tensors.push_back(weights);
    tensors.push_back(channels);
    tensors.push_back(channels);
  };
  add(uint64_t{3} * 64 * 49, 64);
  uint64_t from = 64;
  uint64_t width = 64;
  for (const int blocks : {3, 4, 6, 3}) {
    for (int block = 0; block < blocks; ++block) {
      add(from * width, width);
      add(width * width * 9, width);
      add(width * 4 * width, 4 * width);
      if (block == 0) add(from * 4 * width, 4 * width);
      from = 4 * width;
    }
    width *= 2;
  }
  tensors.push_back(from * 1000);
  tensors.push_back(1000);
  return tensors;
}

struct Arrays {
  explicit Arrays(uint64_t n)
      : elements(n),
        gradient(n),
        residual(n),
        tile_bytes(TilesOf(n)),
        refused(TilesOf(n)) {}

  uint64_t elements;
  DeviceArray<float> gradient;
  DeviceArray<float> residual;  // also the accumulator
  DeviceArray<uint32_t> tile_bytes;
  DeviceArray<uint32_t> refused;
};

std::vector<float> GaussianTile() {
  std::mt19937_64 random(1);
  std::normal_distribution<float> gaussian;
  std::vector<float> tile(kTileElements);
  for (float& value : tile) value = gaussian(random);
  return tile;
}

// Fills all tiles with the same values, which are as much work as different ones. T: type
// of the gradient.
template <typename T>
void Fill(Arrays& arrays, const std::vector<T>& tile) {
  auto* const gradient = reinterpret_cast<T*>(arrays.gradient.data());
  for (uint64_t first = 0; first < arrays.elements; first += kTileElements) {
    const uint64_t n = std::min<uint64_t>(kTileElements, arrays.elements - first);
    Must(cudaMemcpy(gradient + first, tile.data(), n * sizeof(T), cudaMemcpyDefault),
         "copy");
  }
  Must(cudaMemset(arrays.residual.data(), 0, arrays.elements * sizeof(float)), "memset");
}

// REQUIRES: the tile was encoded once, from a residual of zeros.
bool FirstTileIsRight(const SynclineCudaCodec& codec, const std::vector<float>& tile,
                      const std::vector<unsigned char>& out) {
  struct alignas(64) Line {
    unsigned char bytes[64];
  };
  std::vector<Line> expected(emulated::TileStride(codec) / sizeof(Line));
  std::vector<Line> workspace(emulated::WorkspaceBytes(codec, kTileElements) / 64);
  std::vector<float> residual(kTileElements);
  uint32_t bytes = 0;
  emulated::EmulatedStream stream;
  Must(emulated::Encode(codec,
                        {.gradient = tile.data(),
                         .residual = residual.data(),
                         .elements = kTileElements,
                         .out = expected.data(),
                         .tile_bytes = &bytes,
                         .workspace = workspace.data()},
                        stream),
       "emulated encode");
  return std::memcmp(out.data(), expected.data(), bytes) == 0;
}

struct Bandwidth {
  uint64_t rounds = kDefaultRounds;
  double copy_ms = 0;  // time to copy the gradient
  double copy_gbs = 0;
};

void Print(const char* name, const char* work, double bytes_per_element, double ms,
           const Arrays& arrays, const Bandwidth& copy) {
  const double elements = static_cast<double>(arrays.elements);
  const double gbs = bytes_per_element * elements / ms * 1e-6;
  std::printf(
      "{\"codec\": \"%s\", \"work\": \"%s\", \"elements\": %.0f, \"ms\": %.3f, "
      "\"ns_per_element\": %.5f, \"gbs\": %.0f, \"share_of_copy\": %.3f, "
      "\"copies\": %.2f}\n",
      name, work, elements, ms, ms * 1e6 / elements, gbs, gbs / copy.copy_gbs,
      ms / copy.copy_ms);
}

bool Measure(const NamedCodec& named, Arrays& arrays, const Bandwidth& copy,
             cudaStream_t stream) {
  const SynclineCudaCodec& codec = named.codec;
  const std::vector<float> tile = GaussianTile();
  Fill(arrays, tile);
  const size_t stride = SynclineCudaTileStride(&codec);
  DeviceArray<unsigned char> out(TilesOf(arrays.elements) * stride);
  DeviceArray<unsigned char> workspace(
      SynclineCudaWorkspaceBytes(&codec, arrays.elements));
  const SynclineCudaEncoding encoding = {.gradient = arrays.gradient.data(),
                                         .residual = arrays.residual.data(),
                                         .elements = arrays.elements,
                                         .out = out.data(),
                                         .tile_bytes = arrays.tile_bytes.data(),
                                         .workspace = workspace.data()};
  const auto encode = [&] {
    Must(SynclineCudaEncode(&codec, &encoding, stream), "encode");
  };
  encode();
  if (arrays.elements >= kTileElements &&
      !FirstTileIsRight(codec, tile, out.Read(stride))) {
    std::printf("FAILED: %s: the first tile is wrong\n", named.name);
    return false;
  }
  const double wire = static_cast<double>(arrays.tile_bytes.Read(1)[0]) / kTileElements;
  Print(named.name, "encode", 12 + wire, Milliseconds(copy.rounds, stream, encode),
        arrays, copy);
  std::vector<uint16_t> narrow;
  for (const float value : tile) narrow.push_back(Bf16FromFloat(value));
  Fill(arrays, narrow);
  SynclineCudaEncoding of_bf16 = encoding;
  of_bf16.dtype = static_cast<uint32_t>(DType::kBf16);
  const double bf16_ms = Milliseconds(copy.rounds, stream, [&] {
    Must(SynclineCudaEncode(&codec, &of_bf16, stream), "encode");
  });
  Print(named.name, "encode bf16", 10 + wire, bf16_ms, arrays, copy);
  const SynclineCudaDecoding decoding = {.bytes = out.data(),
                                         .tile_bytes = arrays.tile_bytes.data(),
                                         .stride = stride,
                                         .accumulator = arrays.residual.data(),
                                         .elements = arrays.elements,
                                         .refused = arrays.refused.data()};
  const double ms = Milliseconds(copy.rounds, stream, [&] {
    Must(SynclineCudaDecodeAdd(&codec, &decoding, stream), "decode");
  });
  // Sparse tiles touch few elements of the accumulator.
  const double sums = codec.id == 16 ? 8 * codec.ratio : 8;
  Print(named.name, "decode_add", sums + wire, ms, arrays, copy);
  return true;
}

// Returns whether `arrays` had room.
bool MeasureResNet50(const NamedCodec& named, Arrays& arrays, const Bandwidth& copy,
                     cudaStream_t stream) {
  const SynclineCudaCodec& codec = named.codec;
  const std::vector<uint64_t> tensors = ResNet50();
  uint64_t tiles = 0;
  uint64_t elements = 0;
  for (const uint64_t n : tensors) {
    tiles += TilesOf(n);
    elements += n;
  }
  if (tiles * kTileElements > arrays.elements) return false;
  Fill(arrays, GaussianTile());
  const size_t stride = SynclineCudaTileStride(&codec);
  DeviceArray<unsigned char> out(tiles * stride);
  DeviceArray<unsigned char> workspace(SynclineCudaWorkspaceBytes(&codec, elements));
  const double ms = Milliseconds(copy.rounds, stream, [&] {
    uint64_t tile = 0;
    for (const uint64_t n : tensors) {
      const SynclineCudaEncoding encoding = {
          .gradient = arrays.gradient.data() + tile * kTileElements,
          .residual = arrays.residual.data() + tile * kTileElements,
          .elements = n,
          .out = out.data() + tile * stride,
          .tile_bytes = arrays.tile_bytes.data() + tile,
          .workspace = workspace.data()};
      Must(SynclineCudaEncode(&codec, &encoding, stream), "encode");
      tile += TilesOf(n);
    }
  });
  std::printf(
      "{\"codec\": \"%s\", \"work\": \"encode resnet50\", \"tensors\": %zu, "
      "\"elements\": %.0f, \"ms\": %.3f}\n",
      named.name, tensors.size(), static_cast<double>(elements), ms);
  return true;
}

}  // namespace
}  // namespace syncline

int main(int argc, char** argv) {
  using namespace syncline;
  gpu::RequireDevice();
  const uint64_t elements =
      argc > 1 ? std::strtoull(argv[1], nullptr, 10) : kDefaultElements;
  const uint64_t rounds = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : kDefaultRounds;
  if (elements == 0 || rounds == 0) {
    std::printf("usage: cuda_codecs_bench [ELEMENTS [ROUNDS]]\n");
    return 2;
  }
  cudaStream_t stream = nullptr;
  Must(cudaStreamCreate(&stream), "stream");
  Arrays arrays(elements);
  const double bytes = static_cast<double>(elements) * sizeof(float);
  const double copy_ms = Milliseconds(rounds, stream, [&] {
    Must(cudaMemcpyAsync(arrays.residual.data(), arrays.gradient.data(),
                         elements * sizeof(float), cudaMemcpyDefault, stream),
         "copy");
  });
  const Bandwidth copy = {
      .rounds = rounds, .copy_ms = copy_ms, .copy_gbs = 2 * bytes / copy_ms * 1e-6};
  cudaDeviceProp device;
  Must(cudaGetDeviceProperties(&device, 0), "properties");
  std::printf("{\"device\": \"%s\", \"copy_gbs\": %.0f, \"blocks\": %d}\n", device.name,
              copy.copy_gbs, SYNCLINE_CUDA_BLOCKS);
  bool good = true;
  for (const NamedCodec& named : kCodecs) {
    good = Measure(named, arrays, copy, stream) && good;
    MeasureResNet50(named, arrays, copy, stream);
  }
  cudaStreamDestroy(stream);
  return good ? 0 : 1;
}
