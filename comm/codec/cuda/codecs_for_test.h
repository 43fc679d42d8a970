// Runs codecs.h on the emulated GPU and compares it with the codecs of comm/codec.
//
//   const Case run = {.codec = {.id = 5}, .elements = 70'000};
//   ExpectSameAsCpu(run, MakeInput(run, ValueKind::kGaussian));
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/base/dtype.h"
#include "comm/codec/codec.h"
#include "comm/codec/cuda/codecs.h"

namespace syncline {

enum class ValueKind {
  kGaussian,
  kSparse,       // 5 % are not zero
  kHeavyTailed,  // a few are much larger than the rest
  kTies,         // few different magnitudes, zeros of both signs
  kTiny,         // denormals and their neighbours
  kHuge,         // their sums overflow
};
inline constexpr ValueKind kAllKinds[] = {ValueKind::kGaussian,    ValueKind::kSparse,
                                          ValueKind::kHeavyTailed, ValueKind::kTies,
                                          ValueKind::kTiny,        ValueKind::kHuge};

enum class Memory { kNone, kErrorFeedback };
// Whether kernels find the step in their arguments or in device memory.
enum class StepAt { kArguments, kDevice };

struct Case {
  SynclineCudaCodec codec = {};
  DType dtype = DType::kF32;
  Memory memory = Memory::kErrorFeedback;
  float decay = 1;
  SynclineCudaUnits units = {};
  StepAt step_at = StepAt::kArguments;
  bool captures = false;
  uint64_t elements = 0;
  uint64_t first_element = 0;
  uint64_t seed = 1;  // for values, rounding and the order of threads
};

std::string NameOf(const Case& run);

struct Input {
  std::vector<float> values;   // as the gradient's type represents them
  std::vector<uint16_t> bits;  // the gradient, if its type has two bytes
  std::vector<float> residual;
  std::vector<SynclineCudaUnits> tile_units = {};  // empty: the units never change
};
Input MakeInput(const Case& run, ValueKind kind);
// Sets `element` of the gradient to `value`.
void Replace(Input& input, const Case& run, uint64_t element, float value);

// 64-byte aligned memory.
struct alignas(64) Line {
  std::byte bytes[64];
};
inline constexpr std::byte kUntouched{0xee};

struct Encoded {
  int error = 0;
  size_t stride = 0;
  std::vector<Line> out;  // kUntouched where nothing was written
  std::vector<uint32_t> tile_bytes;
  std::vector<float> residual;
  std::vector<SynclineCudaUnits> tile_units;

  ByteView Tile(uint32_t tile) const {
    return {reinterpret_cast<const std::byte*>(out.data()) + tile * stride,
            tile_bytes[tile]};
  }
};
Encoded EncodeOnDevice(const Case& run, const Input& input);

// Returns the codec of comm/codec that does the same.
std::unique_ptr<Codec> CpuCodecOf(const SynclineCudaCodec& codec);

// Encodes with the CPU's codec, and compares bytes, residuals, and which tiles were not
// encoded. Sparse tiles must decode to the same bits.
void ExpectSameAsCpu(const Case& run, const Input& input, const Encoded& device);
inline void ExpectSameAsCpu(const Case& run, const Input& input) {
  ExpectSameAsCpu(run, input, EncodeOnDevice(run, input));
}

struct Decoded {
  int error = 0;
  std::vector<float> accumulator;
  std::vector<uint32_t> refused = {};
};
Decoded DecodeOnDevice(const Case& run, const Encoded& encoded, float weight,
                       std::vector<float> accumulator);

}  // namespace syncline
