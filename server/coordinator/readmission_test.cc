#include "server/coordinator/readmission.h"

#include <gtest/gtest.h>

namespace syncline {
namespace {

constexpr auto kDied = Readmission::Cause::kDied;

Readmission::Figures At(uint64_t completed, uint64_t contributed = 5) {
  return {.contributed = contributed, .completed = completed, .trained = 10};
}

TEST(Readmission, AStrangerAndTheFirstSuccessorMayJoinAtOnce) {
  Readmission readmission;
  EXPECT_TRUE(readmission.MayJoin(3, At(100)));
  readmission.Lost(3, kDied, At(100));
  EXPECT_TRUE(readmission.MayJoin(3, At(100)));
}

TEST(Readmission, ASecondDeathWithoutContributionCostsAStep) {
  Readmission readmission;
  readmission.Lost(3, kDied, At(100));
  readmission.Lost(3, kDied, At(104));
  EXPECT_FALSE(readmission.MayJoin(3, At(113)));
  EXPECT_TRUE(readmission.MayJoin(3, At(114)));
  EXPECT_TRUE(readmission.MayJoin(2, At(104))) << "another rank";
}

TEST(Readmission, EachFurtherDeathCostsTwiceAsMuchUpToALimit) {
  Readmission readmission;
  for (int i = 0; i < 4; ++i) readmission.Lost(3, kDied, At(100));
  EXPECT_FALSE(readmission.MayJoin(3, At(139)));
  EXPECT_TRUE(readmission.MayJoin(3, At(140)));
  for (int i = 0; i < 100; ++i) readmission.Lost(3, kDied, At(100));
  EXPECT_TRUE(readmission.MayJoin(3, At(100 + 640)));
}

TEST(Readmission, AContributionForgivesAllDeaths) {
  Readmission readmission;
  for (int i = 0; i < 4; ++i) readmission.Lost(3, kDied, At(100, 5));
  EXPECT_TRUE(readmission.MayJoin(3, At(100, 6))) << "reported after the death";
  readmission.Lost(3, kDied, At(100, 6));
  EXPECT_TRUE(readmission.MayJoin(3, At(100, 6)));
}

TEST(Readmission, AMemberThatStoodStillWaitsAtOnce) {
  Readmission readmission;
  readmission.Lost(3, Readmission::Cause::kStoodStill, At(100));
  EXPECT_FALSE(readmission.MayJoin(3, At(109)));
  EXPECT_TRUE(readmission.MayJoin(3, At(110)));
}

}  // namespace
}  // namespace syncline
