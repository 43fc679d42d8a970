#include "worker/client/push_encoder.h"

#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "comm/base/job_seed.h"
#include "comm/base/tiling.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

struct Who {
  uint32_t job = 1;
  std::string name = "resnet";
  uint32_t rank = 0;
};

std::vector<std::byte> FirstPush(const Who& who, const std::string& codec) {
  const Transfer transfer = *ParseTransfer(codec);
  const CodecRegistry codecs = CodecRegistry::Builtin();
  const std::array<uint64_t, 1> elements = {1000};
  BufferPool pool(0);
  const ExchangeOptions options = {.job = who.job,
                                   .seed = JobSeed(who.name),
                                   .rank = who.rank,
                                   .shards = 1,
                                   .shard_of_block = {0},
                                   .transfers = {{transfer, transfer}},
                                   .seed_codec = *codecs.Find(CodecId::kFp32)};
  PushEncoder encoder(options, elements, pool);
  std::vector<float> gradient(elements[0]);
  for (size_t i = 0; i < gradient.size(); ++i) {
    gradient[i] = static_cast<float>(i % 37) / 41;
  }
  const Buffer bytes = Gather(encoder.Encode(
      {.label = {.range = {0, 0, 1000}, .step = 3, .epoch = 1}, .gradient = gradient}));
  return {bytes.data(), bytes.data() + bytes.size()};
}

class RandomRoundings : public ::testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Codecs, RandomRoundings,
                         ::testing::Values("bf16-stochastic",
                                           "int8-stochastic:min_elements=0,vectors=1",
                                           "natural:min_elements=0,vectors=1"));

TEST_P(RandomRoundings, FollowFromTheNameOfTheJobAndNotFromItsNumber) {
  const auto first = FirstPush({.job = 1}, GetParam());
  EXPECT_EQ(FirstPush({.job = 2}, GetParam()), first);
  EXPECT_NE(FirstPush({.name = "other"}, GetParam()), first);
}

TEST_P(RandomRoundings, OfTwoRanksAreIndependent) {
  EXPECT_NE(FirstPush({.rank = 1}, GetParam()), FirstPush({.rank = 0}, GetParam()));
}

// A gradient in its own type gives the same bytes as one that was converted to FP32
// before, with and without lent memory. Its error feedback is also the same.
class NarrowGradients : public ::testing::TestWithParam<const char*> {
 protected:
  static constexpr uint32_t kElements = 3 * kTileElements + 100;

  static std::vector<std::byte> Pushes(const ConstMemoryView& gradient, bool lends) {
    const Transfer transfer = *ParseTransfer(GetParam());
    const CodecRegistry codecs = CodecRegistry::Builtin();
    const std::array<uint64_t, 1> elements = {kElements};
    BufferPool pool(0);
    ExchangeOptions options = {.job = 1,
                               .shards = 1,
                               .shard_of_block = {0, 0},
                               .transfers = {{transfer, transfer}},
                               .seed_codec = *codecs.Find(CodecId::kFp32)};
    if (lends) {
      options.push_memory = [](size_t bytes) { return Buffer::Allocate(bytes).owner(); };
    }
    PushEncoder encoder(options, elements, pool);
    std::vector<std::byte> pushed;
    for (uint64_t step = 1; step <= 3; ++step) {
      const std::vector<BlockRange> ranges = {
          {0, 0, 2 * kTileElements},
          {0, 2 * kTileElements, kElements - 2 * kTileElements}};
      for (uint32_t block = 0; block < ranges.size(); ++block) {
        const GradientBlock contribution = {
            .block = block,
            .label = {.range = ranges[block], .step = step, .epoch = 1},
            .gradient = gradient};
        const Buffer bytes = Gather(encoder.Encode(contribution));
        pushed.insert(pushed.end(), bytes.data(), bytes.data() + bytes.size());
        if (step == 2 && block == 1) encoder.TakeBack(contribution);
        encoder.Forget(block);
      }
    }
    return pushed;
  }
};

INSTANTIATE_TEST_SUITE_P(Codecs, NarrowGradients,
                         ::testing::Values("fp32", "bf16", "fp16", "bf16-stochastic",
                                           "onebit:min_elements=0,vectors=1",
                                           "topk:ratio=0.01,min_elements=0,vectors=1",
                                           "dgc:ratio=0.01,min_elements=0,vectors=1",
                                           "demo:min_elements=0,vectors=1"));

TEST_P(NarrowGradients, TravelAsIfTheyHadBeenWidened) {
  for (const DType dtype : {DType::kBf16, DType::kF16}) {
    std::vector<float> values(kElements);
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>(i % 3701) / 4100 - 0.4f;
    }
    std::vector<uint16_t> narrow(kElements);
    const ConstTensorMemory memory = {.data = narrow.data(), .dtype = dtype};
    Narrow(values, {.data = narrow.data(), .dtype = dtype});
    Widen(memory, values);
    for (const bool lends : {false, true}) {
      EXPECT_EQ(Pushes(ConstMemoryView(memory, kElements), lends), Pushes(values, lends))
          << DTypeBytes(dtype) << " " << lends;
    }
  }
}

// Bytes that are kept until the step is over use no more memory than they need.
TEST(PushEncoder, KeepsNoRoomForLongerEncodings) {
  constexpr uint32_t kElements = 4 * kTileElements;
  const Transfer transfer = *ParseTransfer("topk:ratio=0.01,min_elements=0,vectors=1");
  const CodecRegistry codecs = CodecRegistry::Builtin();
  const std::array<uint64_t, 1> elements = {kElements};
  BufferPool pool(0);
  size_t taken = 0;
  const auto lend = [&taken](size_t bytes) {
    taken += bytes;
    const Buffer buffer = Buffer::Allocate(bytes);
    return std::shared_ptr<std::byte>(
        buffer.data(), [&taken, buffer, bytes](std::byte*) { taken -= bytes; });
  };
  const ExchangeOptions options = {.job = 1,
                                   .shards = 1,
                                   .shard_of_block = {0},
                                   .transfers = {{transfer, transfer}},
                                   .seed_codec = *codecs.Find(CodecId::kFp32),
                                   .push_memory = lend};
  PushEncoder encoder(options, elements, pool);
  std::vector<float> gradient(kElements);
  for (size_t i = 0; i < gradient.size(); ++i) {
    gradient[i] = static_cast<float>(i % 37) / 41;
  }
  const GradientBlock contribution = {
      .label = {.range = {0, 0, kElements}, .step = 3, .epoch = 1}, .gradient = gradient};
  const size_t bytes = PayloadBytes(encoder.Encode(contribution));
  EXPECT_LT(bytes, size_t{kElements} / 10);
  EXPECT_EQ(taken, bytes);
  EXPECT_EQ(PayloadBytes(encoder.Encode(contribution)), bytes);  // the kept bytes
  encoder.Forget(0);
  EXPECT_EQ(taken, 0u);
}

}  // namespace
}  // namespace syncline
