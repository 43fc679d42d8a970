#include "server/shard/movement.h"

#include <gtest/gtest.h>

namespace syncline {
namespace {

constexpr WorkerId kFirst = {3, 1};
constexpr WorkerId kSecond = {3, 2};

TEST(Movement, CountsContributionsAndFirstDeliveries) {
  Movement movement({4, 9});
  EXPECT_EQ(movement.moved(3), 0u);
  movement.Delivered(kFirst, 4, 0);
  movement.Delivered(kFirst, 9, 0);
  movement.Contributed(kFirst, 4, 0);
  EXPECT_EQ(movement.moved(3), 3u);
  EXPECT_EQ(movement.contributed(3), 1u);
  EXPECT_EQ(movement.moved(2), 0u) << "another rank";
}

TEST(Movement, BytesOfALongBlockCount) {
  Movement movement({4, 9});
  for (int i = 0; i < 100; ++i) movement.Crossed(kFirst, 64);
  EXPECT_EQ(movement.moved(3), 0u) << "questions alone are no movement";
  movement.Crossed(kFirst, 60 << 10);
  EXPECT_EQ(movement.moved(3), 1u);
  for (int i = 0; i < 16; ++i) movement.Crossed(kFirst, 32 << 10);
  EXPECT_EQ(movement.moved(3), 9u);
  EXPECT_EQ(movement.contributed(3), 0u);
}

TEST(Movement, BytesThatBecomeNoBlockCountForSoLongOnly) {
  Movement movement({4, 9});
  uint64_t moved = 0;
  for (int i = 0; i < 10'000; ++i) {
    movement.Crossed(kFirst, 64 << 10);
    moved = movement.moved(3);
  }
  EXPECT_LT(moved, 300u) << "a few blocks of 4 MiB";
  movement.Contributed(kFirst, 4, 0);
  movement.Crossed(kFirst, 64 << 10);
  EXPECT_EQ(movement.moved(3), moved + 2);
}

TEST(Movement, BytesOfAnEarlierLifeDoNotCount) {
  Movement movement({4});
  movement.Contributed(kSecond, 4, 0);
  movement.Crossed(kFirst, 10 << 20);
  EXPECT_EQ(movement.moved(3), 1u);
}

TEST(Movement, RepeatedDeliveriesDoNotCount) {
  Movement movement({4});
  for (int i = 0; i < 5; ++i) movement.Delivered(kFirst, 4, 7);
  movement.Delivered(kFirst, 4, 6);
  EXPECT_EQ(movement.moved(3), 1u);
  movement.Delivered(kFirst, 4, 8);
  EXPECT_EQ(movement.moved(3), 2u);
}

TEST(Movement, ALaterLifeIsSlowAndManyLivesStandStill) {
  Movement movement({4, 9});
  uint64_t moved = 0;
  for (uint32_t life = 1; life <= 20; ++life) {
    movement.Delivered({3, life}, 4, 5);
    movement.Delivered({3, life}, 9, 5);
    movement.Contributed({3, life}, 4, 5);  // and dies before block 9
    moved = movement.moved(3);
  }
  EXPECT_EQ(moved, 9u) << "three for each of three lives";
  EXPECT_EQ(movement.contributed(3), 1u);
}

TEST(Movement, SomethingNewMakesALifeCountAgain) {
  Movement movement({4, 9});
  for (uint32_t life = 1; life <= 20; ++life) movement.Delivered({3, life}, 4, 5);
  const uint64_t before = movement.moved(3);
  movement.Contributed({3, 20}, 4, 5);
  movement.Delivered({3, 20}, 9, 5);
  EXPECT_EQ(movement.moved(3), before + 2);
}

TEST(Movement, AnEarlierLifeMovesNoMore) {
  Movement movement({4, 9});
  movement.Delivered(kSecond, 4, 5);
  movement.Delivered(kFirst, 9, 5);
  EXPECT_EQ(movement.moved(3), 1u);
}

TEST(Movement, AveragesCountOnceForEachBlock) {
  Movement movement({4, 9});
  for (int i = 0; i < 10; ++i) movement.Averaged(kFirst);
  EXPECT_EQ(movement.moved(3), 2u);
}

TEST(Movement, StepsBeyond32BitsAreNewerAllTheSame) {
  Movement movement({4});
  const uint64_t wrap = (uint64_t{1} << 32) - 2;
  for (uint64_t step = wrap; step < wrap + 5; ++step) {
    movement.Contributed(kFirst, 4, step);
  }
  EXPECT_EQ(movement.contributed(3), 5u);
}

}  // namespace
}  // namespace syncline
