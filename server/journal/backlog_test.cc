// A slow disk is waited for. A stuck one ends the journal of the job with the largest
// backlog.
#include "server/journal/backlog.h"

#include "gtest/gtest.h"

namespace syncline {
namespace {

constexpr uint64_t kNight = 1;
constexpr uint64_t kDay = 2;

TEST(Backlog, ADiskThatIsSlowAndMovesIsNeverStuck) {
  Backlog backlog({.bytes = 100, .patience = absl::Seconds(5)});
  absl::Duration now = absl::Seconds(60);
  backlog.Add(kNight, 100, now);
  for (int i = 0; i < 10; ++i) {
    backlog.Begin(kNight, 10);
    now += absl::Seconds(4);  // to write it, and as long to sync it
    EXPECT_LT(now, backlog.deadline());
    backlog.Moved(now);
    now += absl::Seconds(4);
    EXPECT_LT(now, backlog.deadline());
    backlog.Done(10, now);
    EXPECT_TRUE(backlog.HasRoom(10 * (i + 1)));
    EXPECT_FALSE(backlog.HasRoom(10 * (i + 1) + 1) && i < 9);
  }
  EXPECT_EQ(backlog.held(), 0u);
}

TEST(Backlog, ADiskThatHadNothingToDoIsNotStuck) {
  Backlog backlog({.bytes = 100, .patience = absl::Seconds(5)});
  backlog.Add(kNight, 200, absl::Seconds(60));  // larger than the limit
  EXPECT_EQ(backlog.deadline(), absl::Seconds(65));
  backlog.Add(kNight, 1, absl::Seconds(64));
  EXPECT_EQ(backlog.deadline(), absl::Seconds(65)) << "more to do is no movement";
}

TEST(Backlog, TheJobOfWhichMostWaitsMakesRoom) {
  Backlog backlog({.bytes = 100, .patience = absl::Seconds(5)});
  backlog.Add(kDay, 10, absl::ZeroDuration());
  backlog.Add(kNight, 50, absl::ZeroDuration());
  backlog.Begin(kNight, 45);  // 5 of the job's bytes still wait
  EXPECT_EQ(backlog.largest(), kDay);
  backlog.Add(kNight, 40, absl::ZeroDuration());
  EXPECT_EQ(backlog.largest(), kNight);
  EXPECT_FALSE(backlog.HasRoom(10));
  backlog.Drop(kNight);
  EXPECT_EQ(backlog.held(), 55u) << "what is being written stays";
  EXPECT_TRUE(backlog.HasRoom(10));
  EXPECT_EQ(backlog.largest(), kDay);
  backlog.Begin(kDay, 10);
  EXPECT_EQ(backlog.largest(), std::nullopt);
}

}  // namespace
}  // namespace syncline
