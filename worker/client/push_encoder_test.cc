#include "worker/client/push_encoder.h"

#include <array>
#include <cstddef>
#include <vector>

#include "comm/base/job_seed.h"
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

}  // namespace
}  // namespace syncline
