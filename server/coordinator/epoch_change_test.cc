#include "server/coordinator/epoch_change.h"

#include <gmock/gmock.h>

namespace syncline {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(EpochChange, BeginsWhereNoServerHasBeenYet) {
  EpochChange change = {.epoch = 5, .unprepared = {0, 1}};
  EXPECT_EQ(change.Question(), "prepare epoch 5");
  EXPECT_TRUE(change.Prepare(0, 9));
  EXPECT_FALSE(change.Prepare(0, 12)) << "it has answered";
  EXPECT_FALSE(change.IsPrepared());
  EXPECT_THAT(change.unanswered(), ElementsAre(1));
  EXPECT_TRUE(change.Prepare(1, 7));
  EXPECT_TRUE(change.IsPrepared());
  EXPECT_EQ(change.next_step, 9u);
}

TEST(EpochChange, IsCommittedByEachServerOnce) {
  EpochChange change = {.epoch = 5, .uncommitted = {0, 1}};
  EXPECT_EQ(change.Question(), "commit epoch 5");
  EXPECT_TRUE(change.Commit(1));
  EXPECT_FALSE(change.Commit(1));
  EXPECT_FALSE(change.Commit(2));
  EXPECT_THAT(change.unanswered(), ElementsAre(0));
}

TEST(EpochChange, AsksTheSuccessorOfAServerWhatItHadAnswered) {
  EpochChange change = {.epoch = 5, .unprepared = {0, 1}};
  change.Prepare(0, 9);
  change.Lose(0);
  EXPECT_THAT(change.unprepared, ElementsAre(0, 1));
  EXPECT_THAT(change.uncommitted, IsEmpty());
  change.Replace(0, 7);
  EXPECT_THAT(change.unprepared, ElementsAre(1, 7));
  change.Prepare(1, 9);
  change.Prepare(7, 9);
  change.Lose(1);
  EXPECT_THAT(change.uncommitted, ElementsAre(1)) << "all had prepared it";
  change.Replace(1, 8);
  EXPECT_THAT(change.uncommitted, ElementsAre(8));
  change.Replace(3, 9);
  EXPECT_THAT(change.uncommitted, ElementsAre(8)) << "one that is not awaited";
}

}  // namespace
}  // namespace syncline
