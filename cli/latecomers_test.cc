#include "cli/latecomers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace syncline {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(Latecomers, WaitForThoseWhoBeganBeforeThem) {
  Latecomers latecomers;
  for (const int rank : {0, 1, 1}) latecomers.NoteStart(rank);
  EXPECT_FALSE(latecomers.BeginsAnew(1, {0}));
  EXPECT_TRUE(latecomers.Rejoins(1));
}

TEST(Latecomers, BeginAnewWithOneThatWasStartedAfterThem) {
  Latecomers latecomers;
  for (const int rank : {0, 1, 1, 0}) latecomers.NoteStart(rank);
  EXPECT_TRUE(latecomers.BeginsAnew(1, {0}));
  EXPECT_FALSE(latecomers.Rejoins(1));
  EXPECT_TRUE(latecomers.Rejoins(0));
  latecomers.NoteRestart(1);
  EXPECT_TRUE(latecomers.Rejoins(1)) << "the run that it began anew";
}

TEST(Latecomers, DoNotCountOneThatHasEnded) {
  Latecomers latecomers;
  for (const int rank : {0, 1, 1, 0}) latecomers.NoteStart(rank);
  EXPECT_FALSE(latecomers.BeginsAnew(1, {}));
}

TEST(Latecomers, AreTakenAlongByOneThatIsStartedAgain) {
  Latecomers latecomers;
  for (const int rank : {0, 1, 2, 1, 2}) latecomers.NoteStart(rank);
  for (const int rank : {1, 2}) EXPECT_FALSE(latecomers.BeginsAnew(rank, {0}));
  EXPECT_THAT(latecomers.TakeWaiting(), ElementsAre(1, 2));
  EXPECT_FALSE(latecomers.Rejoins(1));
  EXPECT_THAT(latecomers.TakeWaiting(), IsEmpty());
}

}  // namespace
}  // namespace syncline
