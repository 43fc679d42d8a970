// Compares the codecs on a device with the same source on the emulated GPU, bit for bit:
// what ctest cannot see without a device, which is what nvcc makes of that source, the
// order of memory, and blocks that really run at once. codecs_test.cc compares the
// emulated GPU with the codecs of the CPU. Exits with 77 (skipped) where no device is.
#include <cmath>
#include <cstring>
#include <random>

#include "comm/base/dtype.h"
#include "comm/base/tiling.h"
#include "comm/codec/cuda/device_array.cuh"
#include "comm/codec/cuda/emulator/codecs_emulated.h"

namespace syncline {
namespace {

constexpr uint64_t kSeed = 20240607;
constexpr unsigned char kUntouched = 0xee;

struct Case {
  SynclineCudaCodec codec;
  DType dtype = DType::kF32;
  uint64_t elements = 0;
};

struct alignas(64) Line {
  unsigned char bytes[64];
};

struct Input {
  std::vector<uint32_t> gradient;  // of any type
  std::vector<float> residual;
};

struct Output {
  std::vector<Line> out;
  std::vector<uint32_t> tile_bytes;
  std::vector<float> residual;
  std::vector<float> tile_scales;
  std::vector<float> accumulator;
  std::vector<uint32_t> refused;
};

// A few tiles hold an infinity; values are of few or of all magnitudes.
Input MakeInput(const Case& run) {
  std::mt19937_64 random(kSeed + run.elements);
  std::normal_distribution<float> gaussian;
  Input input;
  input.gradient.resize(run.elements + 1);
  input.residual.resize(run.elements);
  auto* const halves = reinterpret_cast<uint16_t*>(input.gradient.data());
  for (uint64_t i = 0; i < run.elements; ++i) {
    float value = gaussian(random);
    if (i / kTileElements % 2 == 1) value = std::round(value);
    if (i / kTileElements % 4 == 3 && i % kTileElements == 12345) value = HUGE_VALF;
    input.residual[i] = i / kTileElements % 2 == 1 ? 0 : gaussian(random);
    if (run.dtype == DType::kF32) std::memcpy(&input.gradient[i], &value, sizeof(value));
    if (run.dtype == DType::kBf16) halves[i] = Bf16FromFloat(value);
    if (run.dtype == DType::kF16) halves[i] = F16FromFloat(value);
  }
  return input;
}

SynclineCudaEncoding EncodingOf(const Case& run) {
  return {.dtype = static_cast<uint32_t>(run.dtype),
          .decay = 0.9f,
          .loss_scale = 3,
          .elements = run.elements,
          .seed = 5,
          .step = 6,
          .tensor = 7};
}

Output Untouched(const Case& run, const Input& input) {
  Line line;
  std::memset(line.bytes, kUntouched, sizeof(line));
  const size_t tiles = TilesOf(run.elements);
  const size_t lines = tiles * SynclineCudaTileStride(&run.codec) / sizeof(Line);
  return {.out = std::vector<Line>(lines, line),
          .tile_bytes = std::vector<uint32_t>(tiles),
          .residual = input.residual,
          .tile_scales = std::vector<float>(tiles, 7),
          .accumulator = std::vector<float>(run.elements, 0.5f),
          .refused = std::vector<uint32_t>(tiles)};
}

Output OnEmulator(const Case& run, const Input& input) {
  Output output = Untouched(run, input);
  std::vector<Line> workspace(emulated::WorkspaceBytes(run.codec, run.elements) /
                              sizeof(Line));
  emulated::EmulatedStream stream;
  SynclineCudaEncoding encoding = EncodingOf(run);
  encoding.gradient = input.gradient.data();
  encoding.residual = output.residual.data();
  encoding.tile_scales = output.tile_scales.data();
  encoding.out = output.out.data();
  encoding.tile_bytes = output.tile_bytes.data();
  encoding.workspace = workspace.data();
  Must(emulated::Encode(run.codec, encoding, stream), "emulated encode");
  const SynclineCudaDecoding decoding = {.bytes = output.out.data(),
                                         .tile_bytes = output.tile_bytes.data(),
                                         .stride = emulated::TileStride(run.codec),
                                         .weight = -0.3f,
                                         .accumulator = output.accumulator.data(),
                                         .elements = run.elements,
                                         .refused = output.refused.data()};
  Must(emulated::DecodeAdd(run.codec, decoding, stream), "emulated decode");
  return output;
}

// As a graph, so that whatever cannot be captured fails here.
void LaunchCaptured(const SynclineCudaCodec& codec, const SynclineCudaEncoding& encoding,
                    const SynclineCudaDecoding& decoding, cudaStream_t stream) {
  Must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "capture");
  Must(SynclineCudaEncode(&codec, &encoding, stream), "encode");
  Must(SynclineCudaDecodeAdd(&codec, &decoding, stream), "decode");
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  Must(cudaStreamEndCapture(stream, &graph), "end of capture");
  Must(cudaGraphInstantiate(&executable, graph, 0), "graph");
  Must(cudaGraphLaunch(executable, stream), "graph launch");
  Must(cudaStreamSynchronize(stream), "kernels");
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
}

Output OnDevice(const Case& run, const Input& input, cudaStream_t stream) {
  const Output start = Untouched(run, input);
  DeviceArray<uint32_t> gradient(input.gradient);
  DeviceArray<float> residual(start.residual);
  DeviceArray<float> tile_scales(start.tile_scales);
  DeviceArray<Line> out(start.out);
  DeviceArray<uint32_t> tile_bytes(start.tile_bytes);
  DeviceArray<float> accumulator(start.accumulator);
  DeviceArray<uint32_t> refused(start.refused);
  DeviceArray<unsigned char> workspace(
      SynclineCudaWorkspaceBytes(&run.codec, run.elements));
  SynclineCudaEncoding encoding = EncodingOf(run);
  encoding.gradient = gradient.data();
  encoding.residual = residual.data();
  encoding.tile_scales = tile_scales.data();
  encoding.out = out.data();
  encoding.tile_bytes = tile_bytes.data();
  encoding.workspace = workspace.data();
  const SynclineCudaDecoding decoding = {.bytes = out.data(),
                                         .tile_bytes = tile_bytes.data(),
                                         .stride = SynclineCudaTileStride(&run.codec),
                                         .weight = -0.3f,
                                         .accumulator = accumulator.data(),
                                         .elements = run.elements,
                                         .refused = refused.data()};
  LaunchCaptured(run.codec, encoding, decoding, stream);
  return {.out = out.Read(),
          .tile_bytes = tile_bytes.Read(),
          .residual = residual.Read(),
          .tile_scales = tile_scales.Read(),
          .accumulator = accumulator.Read(),
          .refused = refused.Read()};
}

template <typename T>
bool Same(const char* what, const Case& run, const std::vector<T>& device,
          const std::vector<T>& emulator) {
  for (size_t i = 0; i < device.size(); ++i) {
    if (std::memcmp(&device[i], &emulator[i], sizeof(T)) == 0) continue;
    std::printf(
        "codec %u, block 2^%u, stochastic %u, dtype %d, n=%llu: %s[%zu] differs\n",
        run.codec.id, run.codec.block_log2, run.codec.stochastic,
        static_cast<int>(run.dtype), static_cast<unsigned long long>(run.elements), what,
        i);
    return false;
  }
  return true;
}

bool Check(const Case& run, cudaStream_t stream) {
  const Input input = MakeInput(run);
  const Output device = OnDevice(run, input, stream);
  const Output emulator = OnEmulator(run, input);
  return Same("out", run, device.out, emulator.out) &&
         Same("tile_bytes", run, device.tile_bytes, emulator.tile_bytes) &&
         Same("residual", run, device.residual, emulator.residual) &&
         Same("tile_scales", run, device.tile_scales, emulator.tile_scales) &&
         Same("accumulator", run, device.accumulator, emulator.accumulator) &&
         Same("refused", run, device.refused, emulator.refused);
}

constexpr SynclineCudaCodec kCodecs[] = {
    {.id = 5, .block_log2 = 8},
    {.id = 5},
    {.id = 5, .block_log2 = 15},
    {.id = 5, .block_log2 = 16},
    {.id = 6, .block_log2 = 10},
    {.id = 6, .block_log2 = 14},
    {.id = 6, .block_log2 = 10, .stochastic = 1},
    {.id = 16},
    {.id = 16, .values = 2, .ratio = 0.1},
    {.id = 16, .ratio = 1},
};

}  // namespace
}  // namespace syncline

int main() {
  using namespace syncline;
  RequireDevice();
  cudaStream_t stream = nullptr;
  Must(cudaStreamCreate(&stream), "stream");
  bool good = true;
  for (const SynclineCudaCodec& codec : kCodecs) {
    for (const uint64_t n : {1u, 31u, 257u, 8191u, 8193u, 65536u, 65537u, 1234567u}) {
      const auto dtype = static_cast<DType>(1 + n % 3);
      good = Check({.codec = codec, .dtype = dtype, .elements = n}, stream) && good;
    }
  }
  // More blocks than any device runs at once.
  for (const uint32_t id : {5u, 6u, 16u}) {
    const SynclineCudaCodec codec = {.id = id};
    good = Check({.codec = codec, .elements = 9'000'001}, stream) && good;
  }
  cudaStreamDestroy(stream);
  std::printf("%s (seed %llu)\n", good ? "ok" : "FAILED",
              static_cast<unsigned long long>(kSeed));
  return good ? 0 : 1;
}
