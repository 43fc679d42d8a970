// One comparison of a device with the emulated GPU: it encodes the same input on both and
// checks that all output is the same, bit for bit.
//
//   DeviceRun device(run, input);
//   device.Enqueue(stream);
//   good = Same(run, device.Read(), OnEmulator(run, input));
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "comm/base/dtype.h"
#include "comm/base/tiling.h"
#include "comm/codec/cuda/device_array.cuh"
#include "comm/codec/cuda/emulator/codecs_emulated.h"

namespace syncline {

constexpr uint64_t kCheckSeed = 20240607;

enum class Values {
  kMixed,     // Gaussian tiles, tiles of few magnitudes, and some infinities
  kSparse,    // mostly zeros of both signs
  kDenormal,  // denormals and their neighbours
  kHuge,      // their sums overflow
  kNan,       // in every second tile
};

struct CheckCase {
  SynclineCudaCodec codec;
  DType dtype = DType::kF32;
  uint64_t elements = 0;
  Values values = Values::kMixed;
  bool has_residual = true;
  uint64_t first_element = 0;
  uint64_t seed = kCheckSeed;
};

struct alignas(64) CheckLine {
  unsigned char bytes[64];
};

struct CheckInput {
  std::vector<uint32_t> gradient;  // bits of any type
  std::vector<float> residual;
};

struct CheckOutput {
  std::vector<CheckLine> out;
  std::vector<uint32_t> tile_bytes;
  std::vector<float> residual;
  std::vector<SynclineCudaUnits> tile_units;
  std::vector<float> accumulator;
  std::vector<uint32_t> refused;
};

inline float ValueAt(Values values, uint64_t i, std::mt19937_64& random) {
  std::normal_distribution<float> gaussian;
  const float value = gaussian(random);
  const uint64_t tile = i / kTileElements;
  const uint64_t in_tile = i % kTileElements;
  switch (values) {
    case Values::kMixed:
      if (tile % 4 == 3 && in_tile == 12345) return HUGE_VALF;
      return tile % 2 == 1 ? std::round(value) : value;
    case Values::kSparse:
      return random() % 20 == 0 ? value : std::copysign(0.0f, value);
    case Values::kDenormal:
      return value * (random() % 2 == 0 ? 0x1p-126f : 0x1p-140f);
    case Values::kHuge:
      return std::copysign(random() % 9 == 0 ? 0x1.fffffep127f : 0x1.8p126f, value);
    case Values::kNan:
      return tile % 2 == 0 && in_tile == 0 ? std::nanf("") : value;
  }
  return value;
}

inline CheckInput MakeInput(const CheckCase& run) {
  std::mt19937_64 random(run.seed + run.elements);
  CheckInput input;
  input.gradient.resize(run.elements + 1);
  input.residual.resize(run.elements);
  auto* const halves = reinterpret_cast<uint16_t*>(input.gradient.data());
  for (uint64_t i = 0; i < run.elements; ++i) {
    const float value = ValueAt(run.values, i, random);
    if (run.dtype == DType::kF32) std::memcpy(&input.gradient[i], &value, sizeof(value));
    if (run.dtype == DType::kBf16) halves[i] = Bf16FromFloat(value);
    if (run.dtype == DType::kF16) halves[i] = F16FromFloat(value);
    // No residual in these cases, so that few magnitudes stay few and huge sums stay
    // finite.
    const bool is_alone = run.values == Values::kHuge || i / kTileElements % 2 == 1;
    input.residual[i] = is_alone ? 0 : ValueAt(run.values, 1, random);
  }
  return input;
}

// Returns step `number`; its scale and rate differ from those of the steps before.
inline SynclineCudaStep StepNumber(uint64_t number) {
  return {.seed = 5,
          .step = 6 + number,
          .units = {.loss_scale = 3.0f + static_cast<float>(number % 2),
                    .learning_rate = 0.3f / static_cast<float>(number + 1)}};
}

inline SynclineCudaEncoding EncodingOf(const CheckCase& run) {
  return {.decay = 0.9f,
          .elements = run.elements,
          .now = StepNumber(0),
          .first_element = run.first_element,
          .tensor = 7};
}

inline CheckOutput Untouched(const CheckCase& run, const CheckInput& input) {
  CheckLine line;
  std::memset(line.bytes, 0xee, sizeof(line));
  const size_t tiles = TilesOf(run.elements);
  const size_t lines = tiles * emulated::TileStride(run.codec) / sizeof(CheckLine);
  return {.out = std::vector<CheckLine>(lines, line),
          .tile_bytes = std::vector<uint32_t>(tiles),
          .residual = input.residual,
          .tile_units = std::vector<SynclineCudaUnits>(
              tiles, {.loss_scale = 7, .learning_rate = 0.7f}),
          .accumulator = std::vector<float>(run.elements, 0.5f),
          .refused = std::vector<uint32_t>(tiles)};
}

// Runs all `steps`, one after another.
inline CheckOutput OnEmulator(const CheckCase& run, const CheckInput& input,
                              uint64_t steps = 1) {
  CheckOutput output = Untouched(run, input);
  std::vector<CheckLine> workspace(emulated::WorkspaceBytes(run.codec, run.elements) /
                                   sizeof(CheckLine));
  emulated::EmulatedStream stream;
  SynclineCudaEncoding encoding = EncodingOf(run);
  encoding.dtype = static_cast<uint32_t>(run.dtype);
  encoding.gradient = input.gradient.data();
  encoding.residual = run.has_residual ? output.residual.data() : nullptr;
  encoding.tile_units = output.tile_units.data();
  encoding.out = output.out.data();
  encoding.tile_bytes = output.tile_bytes.data();
  encoding.workspace = workspace.data();
  const SynclineCudaDecoding decoding = {.bytes = output.out.data(),
                                         .tile_bytes = output.tile_bytes.data(),
                                         .stride = emulated::TileStride(run.codec),
                                         .weight = -0.3f,
                                         .accumulator = output.accumulator.data(),
                                         .elements = run.elements,
                                         .refused = output.refused.data()};
  for (uint64_t step = 0; step < steps; ++step) {
    encoding.now = StepNumber(step);
    Must(emulated::Encode(run.codec, encoding, stream), "emulated encode");
    Must(emulated::DecodeAdd(run.codec, decoding, stream), "emulated decode");
  }
  return output;
}

// The same on the device.
class DeviceRun {
 public:
  DeviceRun(const CheckCase& run, const CheckInput& input)
      : DeviceRun(run, input, Untouched(run, input)) {}

  // Returns the result of Encode, and decodes if that succeeded. Uses the step in the
  // struct.
  int Enqueue(cudaStream_t stream) {
    const int error = SynclineCudaEncode(&codec_, &encoding_, stream);
    if (error != cudaSuccess) return error;
    return SynclineCudaDecodeAdd(&codec_, &decoding_, stream);
  }
  // From now on the step is the one given to SetStep.
  void KeepStepOnDevice() { encoding_.now_on_device = step_.data(); }
  void SetStep(const SynclineCudaStep& step, cudaStream_t stream) {
    Must(cudaMemcpyAsync(step_.data(), &step, sizeof(step), cudaMemcpyDefault, stream),
         "step");
    Must(cudaStreamSynchronize(stream), "step");
  }
  void SetDevice(int32_t device) { encoding_.device = device; }

  // Waits for all enqueued work.
  CheckOutput Read() {
    return {.out = out_.Read(),
            .tile_bytes = tile_bytes_.Read(),
            .residual = residual_.Read(),
            .tile_units = tile_units_.Read(),
            .accumulator = accumulator_.Read(),
            .refused = refused_.Read()};
  }

 private:
  DeviceRun(const CheckCase& run, const CheckInput& input, const CheckOutput& start)
      : codec_(run.codec),
        gradient_(input.gradient),
        residual_(start.residual),
        tile_units_(start.tile_units),
        out_(start.out),
        tile_bytes_(start.tile_bytes),
        accumulator_(start.accumulator),
        refused_(start.refused),
        step_(1),
        workspace_(SynclineCudaWorkspaceBytes(&run.codec, run.elements)),
        encoding_(EncodingOf(run)) {
    encoding_.dtype = static_cast<uint32_t>(run.dtype);
    encoding_.gradient = gradient_.data();
    encoding_.residual = run.has_residual ? residual_.data() : nullptr;
    encoding_.tile_units = tile_units_.data();
    encoding_.out = out_.data();
    encoding_.tile_bytes = tile_bytes_.data();
    encoding_.workspace = workspace_.data();
    decoding_ = {.bytes = out_.data(),
                 .tile_bytes = tile_bytes_.data(),
                 .stride = SynclineCudaTileStride(&run.codec),
                 .weight = -0.3f,
                 .accumulator = accumulator_.data(),
                 .elements = run.elements,
                 .refused = refused_.data()};
  }

  SynclineCudaCodec codec_;
  DeviceArray<uint32_t> gradient_;
  DeviceArray<float> residual_;
  DeviceArray<SynclineCudaUnits> tile_units_;
  DeviceArray<CheckLine> out_;
  DeviceArray<uint32_t> tile_bytes_;
  DeviceArray<float> accumulator_;
  DeviceArray<uint32_t> refused_;
  DeviceArray<SynclineCudaStep> step_;
  DeviceArray<unsigned char> workspace_;
  SynclineCudaEncoding encoding_;
  SynclineCudaDecoding decoding_;
};

template <typename T>
bool SameArray(const char* what, const CheckCase& run, const std::vector<T>& device,
               const std::vector<T>& emulator) {
  for (size_t i = 0; i < device.size(); ++i) {
    if (std::memcmp(&device[i], &emulator[i], sizeof(T)) == 0) continue;
    std::printf(
        "codec %u, block 2^%u, stochastic %u, dtype %d, values %d, n=%llu from %llu, "
        "%s residual: %s[%zu] differs\n",
        run.codec.id, run.codec.block_log2, run.codec.stochastic,
        static_cast<int>(run.dtype), static_cast<int>(run.values),
        static_cast<unsigned long long>(run.elements),
        static_cast<unsigned long long>(run.first_element),
        run.has_residual ? "with" : "no", what, i);
    return false;
  }
  return true;
}

// Prints what differs.
inline bool Same(const CheckCase& run, const CheckOutput& device,
                 const CheckOutput& emulator) {
  return SameArray("out", run, device.out, emulator.out) &&
         SameArray("tile_bytes", run, device.tile_bytes, emulator.tile_bytes) &&
         SameArray("residual", run, device.residual, emulator.residual) &&
         SameArray("tile_units", run, device.tile_units, emulator.tile_units) &&
         SameArray("accumulator", run, device.accumulator, emulator.accumulator) &&
         SameArray("refused", run, device.refused, emulator.refused);
}

}  // namespace syncline
