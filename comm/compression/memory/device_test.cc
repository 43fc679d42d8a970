// Compares error feedback on the emulated GPU with GradientMemory, over steps whose units
// change and whose gradients overflow.
#include <gtest/gtest.h>

#include <bit>
#include <limits>

#include "comm/base/tiling.h"
#include "comm/codec/bf16/bf16.h"
#include "comm/codec/cuda/codecs_for_test.h"
#include "comm/compression/memory/gradient_memory.h"

namespace syncline {
namespace {

constexpr uint32_t kElements = 2 * kTileElements + 300;

// A sender that encodes on the CPU.
class CpuMemory {
 public:
  CpuMemory(const SynclineCudaCodec& codec, float decay)
      : transfer_{.codec = CpuCodecOf(codec),
                  .dense = MakeBf16Codec(),
                  .memory = {.kind = MemoryKind::kErrorFeedback, .decay = decay}},
        memory_(transfer_.memory, kElements) {}

  void Encode(std::span<const float> gradient, const SynclineCudaUnits& units) {
    const BlockLabel label = {.range = {.elements = kElements}};
    const Buffer bytes = Buffer::Allocate(MaxBlockBytes(transfer_.Accepted(), kElements));
    BlockWriter writer(label, Checksum::kHeaderOnly, bytes.owner());
    for (uint32_t tile = 0; tile < TilesOf(kElements); ++tile) {
      const uint32_t first = tile * kTileElements;
      memory_.EncodeTile(
          transfer_,
          {.gradient = gradient.subspan(first, TileElements(kElements, tile)),
           .context = ContextAt(label, first),
           .units = {.loss_scale = units.loss_scale,
                     .learning_rate = units.learning_rate}},
          writer, workspace_);
    }
  }

  std::span<const float> residual() const { return memory_.residual(); }

 private:
  const Transfer transfer_;
  GradientMemory memory_;
  GradientMemory::Workspace workspace_;
};

struct Step {
  SynclineCudaUnits units = {};
  bool overflows = false;  // in tile 1
};
// Tile 1 misses two changes of the scale. The rate is unknown at first, then falls, is 0
// for a while, and returns.
constexpr Step kSteps[] = {
    {{1, 0}},        {{1024, 0}},         {{2048, 0.1f}, true}, {{1024, 0.1f}},
    {{1024, 0.03f}}, {{512, 0.3f}, true}, {{256, 0.3f}, true},  {{128, 0.01f}},
    {{128, 0}},      {{64, 0}},           {{64, 0.02f}},        {{64, 0}, true},
    {{128, 0.007f}}};

class CudaMemory : public testing::TestWithParam<uint32_t> {};

TEST_P(CudaMemory, KeepsWhatGradientMemoryKeeps) {
  Case run = {.codec = {.id = GetParam()}, .decay = 0.9f, .elements = kElements};
  CpuMemory cpu(run.codec, run.decay);
  std::vector<float> residual(kElements);
  std::vector<SynclineCudaUnits> tile_units(TilesOf(kElements));
  for (const Step& step : kSteps) {
    ++run.seed;
    run.units = step.units;
    run.step_at = run.seed % 2 == 0 ? StepAt::kDevice : StepAt::kArguments;
    Input input = MakeInput(run, ValueKind::kGaussian);
    for (float& value : input.values) value *= step.units.loss_scale;
    if (step.overflows) {
      input.values[kTileElements + 5] = std::numeric_limits<float>::infinity();
    }
    input.residual = residual;
    input.tile_units = tile_units;
    const Encoded device = EncodeOnDevice(run, input);
    residual = device.residual;
    tile_units = device.tile_units;
    cpu.Encode(input.values, step.units);
    EXPECT_EQ(device.tile_bytes[1] == 0, step.overflows);
    for (uint32_t i = 0; i < kElements; ++i) {
      ASSERT_EQ(std::bit_cast<uint32_t>(residual[i]),
                std::bit_cast<uint32_t>(cpu.residual()[i]))
          << NameOf(run) << " element " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ids, CudaMemory, testing::Values(5, 6, 16));

}  // namespace
}  // namespace syncline
