#include "cli/process_end.h"

#include <optional>

#include "gtest/gtest.h"

namespace syncline {
namespace {

TEST(FruitlessRestarts, AreCountedFromTheStepThatTheJobHasReached) {
  FruitlessRestarts restarts;
  for (const uint64_t step : {0, 7, 7, 9, 10, 11, 12}) {
    restarts.NoteDeath(step);
    EXPECT_FALSE(restarts.AreUsedUp()) << step;
    restarts.NoteRestart();
  }
  restarts.NoteDeath(12);
  EXPECT_EQ(restarts.NoteRestart(), 2);
  restarts.NoteDeath(std::nullopt);
  EXPECT_EQ(restarts.NoteRestart(), 3);
  restarts.NoteDeath(5);
  EXPECT_TRUE(restarts.AreUsedUp());
  EXPECT_EQ(
      restarts.Describe(),
      "it was started again 3 times, and the job has not come further than step 12");
  restarts.NoteDeath(13);
  EXPECT_FALSE(restarts.AreUsedUp());
}

}  // namespace
}  // namespace syncline
