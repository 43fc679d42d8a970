#include "cli/latecomers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace syncline {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(Latecomers, WaitUntilANewRunBegins) {
  Latecomers latecomers;
  latecomers.Wait(2);
  latecomers.Wait(1);
  EXPECT_EQ(latecomers.waiting(), 2);
  EXPECT_TRUE(latecomers.Rejoins(1));
  EXPECT_THAT(latecomers.BeginAnew(), ElementsAre(1, 2));
  EXPECT_EQ(latecomers.waiting(), 0);
  EXPECT_FALSE(latecomers.Rejoins(1));
  EXPECT_TRUE(latecomers.Rejoins(0)) << "it never came too late";
  EXPECT_THAT(latecomers.BeginAnew(), IsEmpty());
}

TEST(Latecomers, RejoinTheRunThatTheyBeganAnewWhenTheyFail) {
  Latecomers latecomers;
  latecomers.Wait(1);
  latecomers.BeginAnew();
  latecomers.NoteRestart(1);
  EXPECT_TRUE(latecomers.Rejoins(1));
}

}  // namespace
}  // namespace syncline
