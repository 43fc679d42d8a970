#include "worker/examples/fashion_mnist/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace syncline::fashion_mnist {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

Progress Example() {
  return {.step = 250,
          .total_steps = 1000,
          .seconds = 10,
          .loss = 0.2514,
          .accuracy = 0.913,
          .samples_per_second = 6400,
          .bytes_pushed = 825 << 20,
          .bytes_pulled = 3 << 19};
}

TEST(Progress, SaysEverythingInOneLine) {
  EXPECT_EQ(FormatProgress(Example(), 8),
            " 25% |##------| 250/1000  loss 0.251  acc 91.3%  6400 samples/s  "
            "push 825.0 MiB  pull 1.5 MiB  ETA 0:30");
}

TEST(Progress, LeavesTheBarOut) {
  EXPECT_THAT(FormatProgress(Example(), 0), StartsWith(" 25% 250/1000"));
}

TEST(Progress, HasNoEtaBeforeTheFirstStep) {
  Progress progress = Example();
  progress.first_step = progress.step;
  EXPECT_THAT(FormatProgress(progress, 8), HasSubstr("ETA --:--"));
}

TEST(Progress, CountsOnlyTheStepsOfALateJoinerForItsEta) {
  Progress progress = Example();
  progress.first_step = 200;  // 50 steps in 10 s, 750 to go
  EXPECT_THAT(FormatProgress(progress, 8), HasSubstr("ETA 2:30"));
}

TEST(Progress, FillsTheBarAtTheEnd) {
  Progress progress = Example();
  progress.step = progress.total_steps;
  EXPECT_THAT(FormatProgress(progress, 4), StartsWith("100% |####| 1000/1000"));
}

}  // namespace
}  // namespace syncline::fashion_mnist
