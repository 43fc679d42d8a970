#include "server/coordinator/answer_watch.h"

#include <gtest/gtest.h>

namespace syncline {
namespace {

constexpr absl::Duration kAtMost = absl::Seconds(1);

absl::Duration At(int seconds) { return absl::Seconds(seconds); }

TEST(AnswerWatch, CountsFromTheFirstLookAtAQuestion) {
  AnswerWatch watch;
  EXPECT_EQ(watch.Look("commit 2", false, At(5), kAtMost), At(0));
  EXPECT_EQ(watch.Look("commit 2", false, At(6), kAtMost), At(1));
  EXPECT_EQ(watch.Look("commit 1", false, At(7), kAtMost), At(0)) << "one has answered";
  EXPECT_EQ(watch.Look("commit 1", true, At(8), kAtMost), At(0)) << "they are at work";
  EXPECT_EQ(watch.Look("commit 1", false, At(9), kAtMost), At(1));
}

TEST(AnswerWatch, ALookThatComesLateCountsLittle) {
  AnswerWatch watch;
  watch.Look("commit 2", false, At(0), kAtMost);
  EXPECT_EQ(watch.Look("commit 2", false, At(100), kAtMost), kAtMost);
}

TEST(AnswerWatch, StandsStillWhileSomebodyIsAway) {
  AnswerWatch watch;
  watch.Look("commit 2", false, At(0), kAtMost);
  watch.Look("commit 2", false, At(1), kAtMost);
  for (int second = 2; second < 50; ++second) watch.Pause(At(second));
  EXPECT_EQ(watch.Look("commit 2", false, At(50), kAtMost), At(2))
      << "what had passed before still counts";
}

}  // namespace
}  // namespace syncline
