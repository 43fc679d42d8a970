#include "server/coordinator/recoveries.h"

#include <gmock/gmock.h>

namespace syncline {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(Recoveries, ShowNothingBeforeTheFirstOne) {
  Recoveries recoveries;
  EXPECT_FALSE(recoveries.Look(true, absl::Seconds(5)).has_value());
  const RecoveryView view = recoveries.View(absl::Seconds(9));
  EXPECT_EQ(view.count, 0u);
  EXPECT_THAT(view.last, IsEmpty());
  EXPECT_EQ(view.sums.at("journal").count, 0u) << "a counter begins at zero";
}

TEST(Recoveries, LastFromTheLossUntilTheJobGoesOn) {
  Recoveries recoveries;
  recoveries.Begin(Recoveries::Cause::kBackup, "server 1 (b)", absl::Seconds(10));
  EXPECT_FALSE(recoveries.Look(false, absl::Seconds(11)).has_value());
  EXPECT_EQ(recoveries.View(absl::Seconds(11)).count, 0u) << "it is under way";
  const auto line = recoveries.Look(true, absl::Seconds(12.5));
  EXPECT_THAT(line.value_or(""), HasSubstr("2.5 s after the loss of server 1 (b)"));
  EXPECT_FALSE(recoveries.IsUnderWay());
  const RecoveryView view = recoveries.View(absl::Seconds(20));
  EXPECT_EQ(view.count, 1u);
  EXPECT_EQ(view.sums.at("backup").took, absl::Seconds(2.5));
  EXPECT_EQ(view.last, "server 1 (b)");
  EXPECT_EQ(view.last_age, absl::Seconds(7.5));
}

TEST(Recoveries, ARunThatBeginsWithFewerStepsIsARollback) {
  Recoveries first;
  EXPECT_FALSE(first.BeginAt(0).has_value()) << "nothing was before it";
  Recoveries second;
  second.Follow(first, 47);
  const auto line = second.BeginAt(40);
  EXPECT_THAT(line.value_or(""), HasSubstr("from step 47"));
  EXPECT_THAT(line.value_or(""), HasSubstr("to step 40: 7 steps are repeated"));
  EXPECT_EQ(second.View(absl::Seconds(1)).rollbacks, 1u);
  // A run that was lost before it began passes on the steps of the run before it.
  Recoveries third;
  third.Follow(second, 50);
  Recoveries fourth;
  fourth.Follow(third, 0);
  EXPECT_THAT(fourth.BeginAt(49).value_or(""), HasSubstr(": 1 steps are repeated"));
  EXPECT_EQ(fourth.View(absl::Seconds(1)).rollbacks, 2u);
}

TEST(Recoveries, ARunWithAllStepsOrThatIsMeantToHaveFewerIsNoRollback) {
  Recoveries first;
  Recoveries second;
  second.Follow(first, 47);
  EXPECT_FALSE(second.BeginAt(47).has_value());
  Recoveries third;
  third.Follow(second, std::nullopt);
  EXPECT_FALSE(third.BeginAt(0).has_value());
  EXPECT_EQ(third.View(absl::Seconds(1)).rollbacks, 0u);
}

TEST(Recoveries, OfSeveralLossesEachCountsUnderItsCause) {
  Recoveries recoveries;
  recoveries.Begin(Recoveries::Cause::kCoordinator, "the coordinator", std::nullopt);
  recoveries.Begin(Recoveries::Cause::kJournal, "server 0 (a)", absl::Seconds(1));
  recoveries.Begin(Recoveries::Cause::kJournal, "server 0 (a)", absl::Seconds(2));
  EXPECT_FALSE(recoveries.Look(false, absl::Seconds(3)).has_value());
  ASSERT_TRUE(recoveries.Look(true, absl::Seconds(7)).has_value());
  const RecoveryView view = recoveries.View(absl::Seconds(7));
  EXPECT_EQ(view.count, 2u);
  EXPECT_EQ(view.sums.at("coordinator").took, absl::Seconds(4)) << "since the first look";
  EXPECT_EQ(view.sums.at("journal").count, 1u) << "the same server is lost once";
  EXPECT_EQ(view.sums.at("journal").took, absl::Seconds(6));
  EXPECT_EQ(view.last, "the coordinator and server 0 (a)");
  EXPECT_EQ(view.last_took, absl::Seconds(6));
}

}  // namespace
}  // namespace syncline
