#include "comm/rpc/dialer.h"

#include <set>

#include "gtest/gtest.h"

namespace syncline {
namespace {

constexpr DialerOptions kOptions = {.first = absl::Milliseconds(200),
                                    .longest = absl::Seconds(1)};

TEST(DialerTest, BeginsWithShortSlotsAndGrowsToTheLongest) {
  Dialer dialer(kOptions, 1);
  for (int i = 0; i < kOptions.first_slots; ++i) {
    const absl::Duration slot = dialer.NextSlot();
    EXPECT_LE(slot, kOptions.first);
    EXPECT_GE(slot, 0.8 * kOptions.first);
  }
  EXPECT_GT(dialer.NextSlot(), 1.1 * kOptions.first);
  for (int i = 0; i < 1000; ++i) {
    const absl::Duration slot = dialer.NextSlot();
    EXPECT_LE(slot, kOptions.longest);
    EXPECT_GT(slot, kOptions.first);
  }
  dialer.Reset();
  EXPECT_LE(dialer.NextSlot(), kOptions.first);
}

TEST(DialerTest, DoesNotComeAtTheSameMomentsAsOthers) {
  std::set<absl::Duration> first;
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    first.insert(Dialer(kOptions, seed).NextSlot());
  }
  EXPECT_GT(first.size(), 90u);
}

}  // namespace
}  // namespace syncline
