#include "comm/codec/cuda/codecs_for_test.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>

#include "absl/strings/str_cat.h"
#include "comm/base/tiling.h"
#include "comm/codec/bf16/bf16.h"
#include "comm/codec/cuda/emulator/codecs_emulated.h"
#include "comm/codec/fp32/fp32.h"
#include "comm/codec/integer/integer.h"
#include "comm/codec/sign/sign.h"
#include "comm/codec/sparse/sparse.h"

namespace syncline {
namespace {

constexpr uint64_t kStep = 11;
constexpr uint32_t kTensor = 3;
constexpr float kGuard = 1234.5f;

float Draw(ValueKind kind, std::mt19937_64& random) {
  std::normal_distribution<float> gaussian;
  const float value = gaussian(random);
  switch (kind) {
    case ValueKind::kGaussian:
      return value;
    case ValueKind::kSparse:
      return random() % 20 == 0 ? value : 0;
    case ValueKind::kHeavyTailed:
      return value * std::exp(6 * gaussian(random));
    case ValueKind::kTies:
      return static_cast<float>(static_cast<int>(random() % 7) - 3) *
             (value < 0 ? -1 : 1);
    case ValueKind::kTiny:
      return value * (random() % 2 == 0 ? 0x1p-126f : 0x1p-140f);
    case ValueKind::kHuge:
      return std::copysign(random() % 9 == 0 ? 0x1.fffffep127f : 0x1.8p126f, value);
  }
  return 0;
}

float Narrowed(DType dtype, float value, uint16_t& bits) {
  switch (dtype) {
    case DType::kF32:
      return value;
    case DType::kBf16:
      bits = Bf16FromFloat(value);
      return FloatFromBf16(bits);
    case DType::kF16:
      bits = F16FromFloat(value);
      return FloatFromF16(bits);
  }
  return 0;
}

size_t Padded(size_t bytes) { return (bytes + 63) / 64 * 64; }

bool SameBits(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

// The CPU's encoding of one tile.
struct CpuTile {
  bool finite = true;
  std::vector<std::byte> bytes;
  std::vector<float> residual;
};

// Values of a sparse tile are limited to the largest finite BF16.
std::vector<float> CutOff(const SynclineCudaCodec& codec, std::vector<float> x) {
  if (codec.id != uint32_t{static_cast<uint16_t>(CodecId::kSparse)}) return x;
  if (codec.values != 2) return x;
  for (float& value : x) {
    if (std::abs(value) > kLargestToBf16) value = std::copysign(0x1.fep127f, value);
  }
  return x;
}

CpuTile EncodeOnCpu(const Case& run, const Input& input, uint32_t tile) {
  const std::unique_ptr<Codec> codec = CpuCodecOf(run.codec);
  const uint64_t first = uint64_t{tile} * kTileElements;
  const uint32_t n = TileElements(run.elements, tile);
  CpuTile result;
  std::vector<float> x(n);
  for (uint32_t i = 0; i < n; ++i) {
    x[i] = input.values[first + i];
    if (run.memory == Memory::kErrorFeedback) {
      x[i] = x[i] + run.decay * input.residual[first + i];
    }
    result.finite &= std::isfinite(x[i]);
  }
  result.residual.assign(input.residual.begin() + static_cast<ptrdiff_t>(first),
                         input.residual.begin() + static_cast<ptrdiff_t>(first + n));
  if (!result.finite) return result;
  result.bytes.resize(codec->MaxEncodedBytes(n));
  const EncodeContext context = {.seed = run.seed,
                                 .step = kStep,
                                 .tensor = kTensor,
                                 .first_element = run.first_element + first};
  const std::vector<float> cut = CutOff(run.codec, x);
  result.bytes.resize(codec->Encode(
      cut, run.memory == Memory::kNone ? std::span<float>() : std::span(result.residual),
      context, result.bytes));
  if (run.memory == Memory::kNone) return result;
  for (uint32_t i = 0; i < n; ++i) {
    // The sent part of a limited value is known exactly.
    if (cut[i] != x[i]) result.residual[i] = x[i] - (cut[i] - result.residual[i]);
  }
  return result;
}

void ExpectSameBytes(const Case& run, const Encoded& device, const CpuTile& cpu,
                     uint32_t tile) {
  const ByteView bytes = device.Tile(tile);
  if (run.codec.id != uint32_t{static_cast<uint16_t>(CodecId::kSparse)}) {
    ASSERT_EQ(bytes.size(), cpu.bytes.size()) << NameOf(run) << " tile " << tile;
    const auto difference = std::ranges::mismatch(bytes, cpu.bytes);
    ASSERT_TRUE(difference.in1 == bytes.end())
        << NameOf(run) << " tile " << tile << " byte " << difference.in1 - bytes.begin();
    return;
  }
  // The bytes may differ, because the CPU has more index coders.
  const std::unique_ptr<Codec> codec = CpuCodecOf(run.codec);
  const uint32_t n = TileElements(run.elements, tile);
  std::vector<float> from_device(n);
  std::vector<float> from_cpu(n);
  const absl::Status decoded = codec->Decode(bytes, from_device);
  ASSERT_TRUE(decoded.ok()) << NameOf(run) << " tile " << tile << ": " << decoded;
  ASSERT_TRUE(codec->Decode(cpu.bytes, from_cpu).ok());
  ASSERT_EQ(codec->Nonzeros(bytes, n), codec->Nonzeros(cpu.bytes, n)) << NameOf(run);
  for (uint32_t i = 0; i < n; ++i) {
    ASSERT_TRUE(SameBits(from_device[i], from_cpu[i]))
        << NameOf(run) << " tile " << tile << " element " << i << ": " << from_device[i]
        << " and not " << from_cpu[i];
  }
}

void ExpectSameTile(const Case& run, const Input& input, const Encoded& device,
                    uint32_t tile) {
  const CpuTile cpu = EncodeOnCpu(run, input, tile);
  ASSERT_EQ(device.tile_bytes[tile] != 0, cpu.finite) << NameOf(run) << " tile " << tile;
  const auto* const bytes =
      reinterpret_cast<const std::byte*>(device.out.data()) + tile * device.stride;
  if (cpu.finite) {
    ASSERT_NO_FATAL_FAILURE(ExpectSameBytes(run, device, cpu, tile));
  }
  const size_t written = device.tile_bytes[tile];
  for (size_t i = written; i < device.stride; ++i) {
    const std::byte expected = i < Padded(written) ? std::byte{0} : kUntouched;
    ASSERT_EQ(bytes[i], expected) << NameOf(run) << " tile " << tile << " byte " << i;
  }
  const uint64_t first = uint64_t{tile} * kTileElements;
  for (size_t i = 0; i < cpu.residual.size(); ++i) {
    ASSERT_TRUE(SameBits(device.residual[first + i], cpu.residual[i]))
        << NameOf(run) << " residual " << first + i << ": " << device.residual[first + i]
        << " and not " << cpu.residual[i];
  }
}

}  // namespace

std::string NameOf(const Case& run) {
  return absl::StrCat("codec ", run.codec.id, " block_log2 ", run.codec.block_log2,
                      " stochastic ", run.codec.stochastic, " values ", run.codec.values,
                      " ratio ", run.codec.ratio, " dtype ", static_cast<int>(run.dtype),
                      " elements ", run.elements, " seed ", run.seed);
}

Input MakeInput(const Case& run, ValueKind kind) {
  std::mt19937_64 random(run.seed);
  Input input;
  for (uint64_t i = 0; i < run.elements; ++i) {
    uint16_t bits = 0;
    float value = Narrowed(run.dtype, Draw(kind, random), bits);
    if (!std::isfinite(value)) value = Narrowed(run.dtype, 1, bits);  // FP16 overflowed
    input.values.push_back(value);
    if (run.dtype != DType::kF32) input.bits.push_back(bits);
    // Draws residuals of the same kind, so that ties stay ties. Huge values have none, so
    // that sums stay finite.
    input.residual.push_back(kind == ValueKind::kHuge ? 0 : Draw(kind, random));
  }
  return input;
}

void Replace(Input& input, const Case& run, uint64_t element, float value) {
  uint16_t bits = 0;
  input.values[element] = Narrowed(run.dtype, value, bits);
  if (run.dtype != DType::kF32) input.bits[element] = bits;
}

Encoded EncodeOnDevice(const Case& run, const Input& input) {
  emulated::EmulatedStream stream{.seed = run.seed, .captures = run.captures};
  const uint32_t tiles = TilesOf(run.elements);
  Encoded encoded;
  encoded.stride = emulated::TileStride(run.codec);
  Line untouched;
  std::ranges::fill(untouched.bytes, kUntouched);
  encoded.out.resize(tiles * encoded.stride / sizeof(Line), untouched);
  encoded.tile_bytes.resize(tiles, 77);
  encoded.residual = input.residual;
  encoded.residual.push_back(kGuard);
  encoded.tile_units = input.tile_units;
  std::vector<Line> workspace(
      emulated::WorkspaceBytes(run.codec, run.elements) / sizeof(Line), untouched);
  const SynclineCudaStep now = {.seed = run.seed, .step = kStep, .units = run.units};
  const bool on_device = run.step_at == StepAt::kDevice;
  const void* gradient = input.values.data();
  if (run.dtype != DType::kF32) gradient = input.bits.data();
  encoded.error = emulated::Encode(
      run.codec,
      {.gradient = gradient,
       .dtype = static_cast<uint32_t>(run.dtype),
       .residual = run.memory == Memory::kNone ? nullptr : encoded.residual.data(),
       .decay = run.decay,
       .elements = run.elements,
       .now = on_device ? SynclineCudaStep{} : now,
       .now_on_device = on_device ? &now : nullptr,
       .tile_units = input.tile_units.empty() ? nullptr : encoded.tile_units.data(),
       .first_element = run.first_element,
       .tensor = kTensor,
       .out = encoded.out.data(),
       .tile_bytes = encoded.tile_bytes.data(),
       .workspace = workspace.data()},
      stream);
  EXPECT_EQ(encoded.residual.back(), kGuard) << NameOf(run);
  encoded.residual.pop_back();
  return encoded;
}

std::unique_ptr<Codec> CpuCodecOf(const SynclineCudaCodec& codec) {
  const auto rounding =
      codec.stochastic != 0 ? IntegerRounding::kStochastic : IntegerRounding::kNearest;
  switch (static_cast<CodecId>(codec.id)) {
    case CodecId::kBf16:
      return MakeBf16Codec();
    case CodecId::kSign:
      return MakeSignCodec({.block_log2 = codec.block_log2});
    case CodecId::kInt8:
      return MakeIntegerCodec({.block_log2 = codec.block_log2, .rounding = rounding});
    default:
      break;
  }
  std::shared_ptr<const Codec> fp32 = MakeFp32Codec();
  std::shared_ptr<const Codec> bf16 = MakeBf16Codec();
  return *MakeSparseCodec(
      {.selector = {.kind = SelectorKind::kTopK, .ratio = codec.ratio},
       .values = codec.values == 1 ? fp32 : bf16});
}

void ExpectSameAsCpu(const Case& run, const Input& input, const Encoded& device) {
  ASSERT_EQ(device.error, 0) << NameOf(run);
  for (uint32_t tile = 0; tile < TilesOf(run.elements); ++tile) {
    ASSERT_NO_FATAL_FAILURE(ExpectSameTile(run, input, device, tile));
  }
}

Decoded DecodeOnDevice(const Case& run, const Encoded& encoded, float weight,
                       std::vector<float> accumulator) {
  emulated::EmulatedStream stream{.seed = run.seed};
  Decoded decoded{.accumulator = std::move(accumulator)};
  decoded.refused.resize(TilesOf(run.elements), 77);
  decoded.error = emulated::DecodeAdd(run.codec,
                                      {.bytes = encoded.out.data(),
                                       .tile_bytes = encoded.tile_bytes.data(),
                                       .stride = encoded.stride,
                                       .weight = weight,
                                       .accumulator = decoded.accumulator.data(),
                                       .elements = run.elements,
                                       .refused = decoded.refused.data()},
                                      stream);
  return decoded;
}

}  // namespace syncline
