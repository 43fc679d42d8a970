#include "cli/bench/sum_check.h"

#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;

constexpr size_t kElements = 100;
constexpr size_t kSent = 10;

// SGD of one worker that sends only the ten largest gradients of each step.
struct NaiveTopK {
  double keeps = 1;  // factor of what is kept of unsent values
  float sends = 1;   // factor of sent values
  std::vector<float> weights = std::vector<float>(kElements);
  std::vector<float> kept = std::vector<float>(kElements);

  absl::Status Step(std::span<const float> gradient) {
    for (size_t i = 0; i < kElements; ++i) kept[i] += gradient[i];
    for (size_t n = 0; n < kSent; ++n) {
      size_t largest = 0;
      for (size_t i = 1; i < kElements; ++i) {
        if (std::abs(kept[i]) > std::abs(kept[largest])) largest = i;
      }
      weights[largest] -= kSumCheckLearningRate * sends * kept[largest];
      kept[largest] = 0;
    }
    for (float& value : kept) value *= static_cast<float>(keeps);
    return absl::OkStatus();
  }

  absl::Status Check() {
    return CheckSum({.ratio = 0.1}, weights,
                    [this](std::span<const float> gradient) { return Step(gradient); });
  }
};

TEST(SumCheck, PassesWhatArrivesLater) {
  NaiveTopK codec;
  EXPECT_TRUE(codec.Check().ok()) << codec.Check();
}

TEST(SumCheck, FindsWhatIsForgotten) {
  NaiveTopK codec = {.keeps = 0.5};
  const absl::Status status = codec.Check();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("the pushed gradients give"));
}

TEST(SumCheck, FindsValuesThatAreNotExact) {
  NaiveTopK codec = {.sends = 0.99f};
  EXPECT_TRUE(absl::IsDataLoss(codec.Check()));
}

TEST(SumCheck, KnowsWhichCodecsPromiseIt) {
  const auto promises = [](const char* codec) {
    const auto transfer = ParseTransfer(codec);
    EXPECT_TRUE(transfer.ok()) << transfer.status();
    return transfer.ok() && PromisesSum(*transfer);
  };
  for (const char* codec : {"topk", "topk-sampled", "topk-reuse", "randomk", "blocks",
                            "topk:ratio=0.001,values=int8"}) {
    EXPECT_TRUE(promises(codec)) << codec;
  }
  for (const char* codec :
       {"fp32", "int8", "auto", "dgc", "threshold", "sparseloco", "demo",
        "topk:decay=0.5", "topk:memory=none", "topk:ratio=0.0001"}) {
    EXPECT_FALSE(promises(codec)) << codec;
  }
}

}  // namespace
}  // namespace syncline
