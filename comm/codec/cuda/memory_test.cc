// Error feedback on the emulated GPU against GradientMemory, over steps whose loss scale
// changes and whose gradients overflow.
#include <gtest/gtest.h>

#include <bit>
#include <limits>

#include "comm/base/tiling.h"
#include "comm/codec/bf16/bf16.h"
#include "comm/codec/cuda/codecs_for_test.h"
#include "comm/codec/memory/gradient_memory.h"

namespace syncline {
namespace {

constexpr uint32_t kElements = 2 * kTileElements + 300;

// A sender on the CPU.
class CpuMemory {
 public:
  CpuMemory(const SynclineCudaCodec& codec, float decay)
      : transfer_{.codec = CpuCodecOf(codec),
                  .dense = MakeBf16Codec(),
                  .memory = {.kind = MemoryKind::kErrorFeedback, .decay = decay}},
        memory_(transfer_.memory, kElements) {}

  void Encode(std::span<const float> gradient, float loss_scale) {
    const BlockLabel label = {.range = {.elements = kElements}};
    const Buffer bytes = Buffer::Allocate(MaxBlockBytes(transfer_.Accepted(), kElements));
    BlockWriter writer(label, Checksum::kHeaderOnly, bytes.owner());
    for (uint32_t tile = 0; tile < TilesOf(kElements); ++tile) {
      const uint32_t first = tile * kTileElements;
      memory_.EncodeTile(
          transfer_,
          {.gradient = gradient.subspan(first, TileElements(kElements, tile)),
           .context = ContextAt(label, first),
           .units = {.loss_scale = loss_scale}},
          writer);
    }
  }

  std::span<const float> residual() const { return memory_.residual(); }

 private:
  const Transfer transfer_;
  GradientMemory memory_;
};

struct Step {
  float loss_scale = 1;
  bool overflows = false;  // in tile 1
};
// Tile 1 misses two changes of the scale.
constexpr Step kSteps[] = {{1},         {1024},      {2048, true}, {1024},
                           {512, true}, {256, true}, {128},        {128}};

class CudaMemory : public testing::TestWithParam<uint32_t> {};

TEST_P(CudaMemory, KeepsWhatGradientMemoryKeeps) {
  Case run = {.codec = {.id = GetParam()}, .decay = 0.9f, .elements = kElements};
  CpuMemory cpu(run.codec, run.decay);
  std::vector<float> residual(kElements);
  std::vector<float> tile_scales(TilesOf(kElements), 1.0f);
  for (const Step& step : kSteps) {
    ++run.seed;
    run.loss_scale = step.loss_scale;
    Input input = MakeInput(run, ValueKind::kGaussian);
    for (float& value : input.values) value *= step.loss_scale;
    if (step.overflows) {
      input.values[kTileElements + 5] = std::numeric_limits<float>::infinity();
    }
    input.residual = residual;
    input.tile_scales = tile_scales;
    const Encoded device = EncodeOnDevice(run, input);
    residual = device.residual;
    tile_scales = device.tile_scales;
    cpu.Encode(input.values, step.loss_scale);
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
