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

constexpr char kLine[] =
    " 25% 250/1000 loss 0.251 acc 91.3% 6400 samples/s push 825 pull 2 MiB ETA 0:30";
constexpr int kLineColumns = sizeof(kLine) - 1;

TEST(Progress, SaysEverythingInOneLine) { EXPECT_EQ(FormatProgress(Example()), kLine); }

TEST(Progress, FillsWideTerminalsWithABar) {
  EXPECT_THAT(FitProgress(Example(), kLineColumns + 11),
              StartsWith(" 25% |##------| 250/1000 loss"));
  EXPECT_EQ(FitProgress(Example(), kLineColumns + 11).size(), kLineColumns + 11);
  EXPECT_LE(FitProgress(Example(), 1000).size(), 130u);
}

TEST(Progress, NeverWraps) {
  EXPECT_EQ(FitProgress(Example(), kLineColumns), kLine);
  for (int columns = 0; columns < 150; ++columns) {
    EXPECT_LE(FitProgress(Example(), columns).size(), static_cast<size_t>(columns));
  }
}

TEST(Progress, HasNoEtaBeforeTheFirstStep) {
  Progress progress = Example();
  progress.first_step = progress.step;
  EXPECT_THAT(FormatProgress(progress), HasSubstr("ETA --:--"));
}

TEST(Progress, CountsOnlyTheStepsOfALateJoinerForItsEta) {
  Progress progress = Example();
  progress.first_step = 200;  // 50 steps in 10 s, 750 to go
  EXPECT_THAT(FormatProgress(progress), HasSubstr("ETA 2:30"));
}

TEST(Progress, EndsWithAFullBar) {
  Progress progress = Example();
  progress.step = progress.total_steps;
  EXPECT_THAT(FitProgress(progress, kLineColumns + 8),
              StartsWith("100% |####| 1000/1000"));
}

}  // namespace
}  // namespace syncline::fashion_mnist
