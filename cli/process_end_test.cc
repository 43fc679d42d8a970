#include "cli/process_end.h"

#include <optional>

#include "gtest/gtest.h"

namespace syncline {
namespace {

TEST(FruitlessRestarts, AreCountedFromTheStepThatTheJobHasReached) {
  FruitlessRestarts restarts;
  for (const uint64_t step : {0, 7, 7, 9, 10, 11, 12}) {
    restarts.NoteDeath({{"job", step}});
    EXPECT_FALSE(restarts.AreUsedUp()) << step;
    restarts.NoteRestart();
  }
  restarts.NoteDeath({{"job", 12}});
  EXPECT_EQ(restarts.NoteRestart(), 2);
  restarts.NoteDeath({});
  EXPECT_EQ(restarts.NoteRestart(), 3);
  restarts.NoteDeath({{"job", 5}});
  EXPECT_TRUE(restarts.AreUsedUp());
  EXPECT_EQ(restarts.Describe(),
            "it was started again 3 times, and the job has not got beyond step 12");
  restarts.NoteDeath({{"job", 13}});
  EXPECT_FALSE(restarts.AreUsedUp());
}

TEST(FruitlessRestarts, AnyJobOfTheRunThatComesFurtherCounts) {
  FruitlessRestarts restarts;
  for (uint64_t step = 0; step < 10; ++step) {
    restarts.NoteDeath({{"job", 40}, {"job-2", step}});
    EXPECT_FALSE(restarts.AreUsedUp()) << step;
    restarts.NoteRestart();
  }
  restarts.NoteDeath({{"job", 40}});
  restarts.NoteRestart();
  restarts.NoteDeath({{"job", 40}, {"job-2", 9}});
  restarts.NoteRestart();
  EXPECT_TRUE(restarts.AreUsedUp());
  EXPECT_EQ(
      restarts.Describe(),
      "it was started again 3 times, and its jobs have not got beyond steps 40 and 9");
  restarts.NoteDeath({{"job-3", 1}});
  EXPECT_FALSE(restarts.AreUsedUp()) << "a new one makes its first step";
}

TEST(LastLine, IsTheLastThatSaysSomething) {
  EXPECT_EQ(LastLine({}), "");
  ProcessEvent event;
  event.tail = {"first", "  ValueError: no data ", "", " "};
  EXPECT_EQ(LastLine(event), "ValueError: no data");
}

}  // namespace
}  // namespace syncline
