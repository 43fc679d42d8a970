#include "server/coordinator/homecoming.h"

#include <gtest/gtest.h>

namespace syncline {
namespace {

TEST(Homecoming, EndsWhenAllServersAreBack) {
  Homecoming homecoming;
  homecoming.servers = {0, 1};
  EXPECT_TRUE(homecoming.Take(0, {.prepared = 6}));
  EXPECT_FALSE(homecoming.Take(0, {.prepared = 9})) << "it is back already";
  EXPECT_FALSE(homecoming.HasAllServers());
  EXPECT_TRUE(homecoming.Awaits(1));
  EXPECT_TRUE(homecoming.Take(1, {.prepared = 5}));
  EXPECT_TRUE(homecoming.HasAllServers());
  EXPECT_EQ(homecoming.prepared, 6u);
}

TEST(Homecoming, KnowsWhoHasNotHeardOfAStep) {
  Homecoming homecoming;
  homecoming.servers = {0, 1};
  HeldJob held;
  held.decided = StepDecision{.step = 4};
  held.closed = StepClosed{.step = 6};
  homecoming.Take(0, held);
  homecoming.Take(1, {});
  EXPECT_FALSE(homecoming.LacksDecision(0, 5));
  EXPECT_TRUE(homecoming.LacksDecision(0, 6));
  EXPECT_TRUE(homecoming.LacksDecision(1, 1)) << "not even of the first";
  EXPECT_FALSE(homecoming.LacksDecision(1, 0)) << "there was none";
  EXPECT_FALSE(homecoming.LacksClosed(0, 6));
  EXPECT_TRUE(homecoming.LacksClosed(0, 7));
  EXPECT_TRUE(homecoming.LacksClosed(1, 0));
  EXPECT_TRUE(homecoming.LacksClosed(2, 0)) << "of one that came later";
}

TEST(Homecoming, WaitsForTheSuccessorOfAServerThatDied) {
  Homecoming homecoming;
  homecoming.servers = {0, 1};
  homecoming.Replace(1, 7);
  EXPECT_FALSE(homecoming.Awaits(1));
  EXPECT_TRUE(homecoming.Awaits(7));
  homecoming.Replace(3, 8);
  EXPECT_FALSE(homecoming.Awaits(8));
}

}  // namespace
}  // namespace syncline
