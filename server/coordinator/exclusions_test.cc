// When an excluded rank may be a member again.
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
      exclusions.Why(1, "b:18", kThen + absl::Seconds(599)),
      "rank 1 was excluded on host b, where it held up all others; it may join again "
      "in 1 s, or at once on another host");
  EXPECT_TRUE(exclusions.MayJoin(1, "b:18", kThen + absl::Minutes(10)));
}

TEST(Exclusions, LastLongerEachTimeAndAnHourAtMost) {
  Exclusions exclusions;
  for (const int minutes : {10, 20, 40, 60, 60}) {
    exclusions.Add(1, "b:17", kThen);
    EXPECT_EQ(exclusions.Wait(1, "b:1"), absl::Minutes(minutes));
  }
  exclusions.Add(1, "c:17", kThen);
  EXPECT_EQ(exclusions.Wait(1, "c:1"), absl::Minutes(10))
      << "another host is another machine";
}

TEST(Exclusions, AreKnownOfEachHostOfARank) {
  Exclusions exclusions;
  exclusions.Add(1, "b:17", kThen);
  exclusions.Add(1, "c:3", kThen + absl::Minutes(1));
  EXPECT_EQ(exclusions.count(), 2u);
  EXPECT_FALSE(exclusions.MayJoin(1, "b:18", kThen + absl::Minutes(2)));
  EXPECT_FALSE(exclusions.MayJoin(1, "c:4", kThen + absl::Minutes(2)));
  exclusions.Add(1, "b:18", kThen + absl::Minutes(11));
  EXPECT_EQ(exclusions.Wait(1, "b:1"), absl::Minutes(20)) << "the second one there";
  EXPECT_EQ(exclusions.count(), 3u);
}

TEST(Exclusions, AreCountedAlsoWhenTheOldestAreForgotten) {
  Exclusions exclusions;
  for (uint32_t rank = 0; rank < 300; ++rank) {
    exclusions.Add(rank, "b:1", kThen + absl::Seconds(rank));
  }
  EXPECT_EQ(exclusions.ToRecord().size(), 256u);
  EXPECT_EQ(exclusions.count(), 300u);
  EXPECT_TRUE(exclusions.MayJoin(43, "b:2", kThen + absl::Seconds(300)));
  EXPECT_FALSE(exclusions.MayJoin(44, "b:2", kThen + absl::Seconds(300)));
  Exclusions after;
  after.Restore(exclusions.ToRecord(), exclusions.count());
  EXPECT_EQ(after.count(), 300u);
}

TEST(Exclusions, OutliveTheCoordinatorAsIfTheyWereDoneJustThen) {
  Exclusions before;
  before.Add(1, "b:17", kThen);
  before.Add(1, "b:18", kThen);
  before.Add(4, "c:1", kThen);
  EXPECT_EQ(before.count(), 3u);
  Exclusions after;
  after.Restore(before.ToRecord(), before.count());
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
