// When a rank that was excluded may be a member again.
#include "server/coordinator/exclusions.h"

#include <gtest/gtest.h>

namespace syncline {
namespace {

constexpr absl::Duration kThen = absl::Seconds(100);

TEST(Exclusions, KeepAHostOutForTenMinutesAndAnotherOneNotAtAll) {
  Exclusions exclusions;
  EXPECT_TRUE(exclusions.MayJoin(1, "b:17", kThen));
  exclusions.Add(1, "b:17", kThen);
  EXPECT_FALSE(exclusions.MayJoin(1, "b:18", kThen)) << "started again";
  EXPECT_TRUE(exclusions.MayJoin(1, "c:18", kThen));
  EXPECT_TRUE(exclusions.MayJoin(2, "b:19", kThen)) << "its neighbour";
  EXPECT_FALSE(exclusions.MayJoin(1, "b:18", kThen + absl::Seconds(599)));
  EXPECT_EQ(
      exclusions.Why(1, kThen + absl::Seconds(599)),
      "rank 1 was excluded on host b, where it held up all others; it may join again "
      "in 1 s, and on another host at once");
  EXPECT_TRUE(exclusions.MayJoin(1, "b:18", kThen + absl::Minutes(10)));
}

TEST(Exclusions, LastLongerEachTimeAndAnHourAtMost) {
  Exclusions exclusions;
  for (const int minutes : {10, 20, 40, 60, 60}) {
    exclusions.Add(1, "b:17", kThen);
    EXPECT_EQ(exclusions.Wait(1), absl::Minutes(minutes));
  }
  exclusions.Add(1, "c:17", kThen);
  EXPECT_EQ(exclusions.Wait(1), absl::Minutes(10)) << "another host is another machine";
}

TEST(Exclusions, OutliveTheCoordinatorAsIfTheyWereDoneJustThen) {
  Exclusions before;
  before.Add(1, "b:17", kThen);
  before.Add(1, "b:18", kThen);
  before.Add(4, "c:1", kThen);
  EXPECT_EQ(before.count(), 3u);
  Exclusions after;
  after.Restore(before.ToRecord());
  EXPECT_EQ(after.count(), 3u);
  EXPECT_FALSE(after.MayJoin(1, "b:19", absl::Hours(9))) << "no tick yet";
  after.Tick(absl::Hours(10));
  after.Tick(absl::Hours(10) + absl::Minutes(15));
  EXPECT_FALSE(after.MayJoin(1, "b:19", absl::Hours(10) + absl::Minutes(19)));
  EXPECT_TRUE(after.MayJoin(1, "b:19", absl::Hours(10) + absl::Minutes(20)));
  EXPECT_TRUE(after.MayJoin(4, "c:2", absl::Hours(10) + absl::Minutes(10)));
}

}  // namespace
}  // namespace syncline
