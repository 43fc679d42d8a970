#include "comm/base/event_queue.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::ElementsAre;

TEST(EventQueue, RunsByTimeAndTiesByInsertion) {
  EventQueue events;
  std::vector<int> order;
  events.After(absl::Seconds(2), [&] { order.push_back(4); });
  events.After(absl::Seconds(1), [&] { order.push_back(1); });
  events.After(absl::Seconds(1), [&] { order.push_back(2); });
  events.After(absl::Seconds(1), [&] { order.push_back(3); });
  while (events.RunNext()) {
  }
  EXPECT_THAT(order, ElementsAre(1, 2, 3, 4));
}

TEST(EventQueue, ManyTiesKeepTheirOrder) {
  EventQueue events;
  std::vector<int> order, expected;
  for (int i = 0; i < 1000; ++i) {
    events.After(absl::Seconds(1), [&order, i] { order.push_back(i); });
    expected.push_back(i);
  }
  while (events.RunNext()) {
  }
  EXPECT_EQ(order, expected);
}

TEST(EventQueue, TimeMovesWithTheEvents) {
  EventQueue events;
  EXPECT_EQ(events.now(), absl::ZeroDuration());
  absl::Duration inside;
  events.After(absl::Milliseconds(5), [&] {
    inside = events.now();
    events.After(absl::Milliseconds(3), [] {});
  });
  EXPECT_TRUE(events.RunNext());
  EXPECT_EQ(inside, absl::Milliseconds(5));
  EXPECT_EQ(events.next_time(), absl::Milliseconds(8));
  EXPECT_TRUE(events.RunNext());
  EXPECT_FALSE(events.RunNext());
  EXPECT_EQ(events.now(), absl::Milliseconds(8));
}

TEST(EventQueue, RunUntilStopsAtItsTimeAndRunsWhatIsAddedOnTheWay) {
  EventQueue events;
  std::vector<int> order;
  events.After(absl::Seconds(1), [&] {
    order.push_back(1);
    events.After(absl::Seconds(1), [&] { order.push_back(2); });
    events.After(absl::Seconds(3), [&] { order.push_back(9); });
  });
  EXPECT_EQ(events.RunUntil(absl::Seconds(2)), 2);
  EXPECT_THAT(order, ElementsAre(1, 2));
  EXPECT_EQ(events.RunUntil(absl::Milliseconds(2500)), 0);
  EXPECT_EQ(events.now(), absl::Milliseconds(2500));
  EXPECT_FALSE(events.empty());
}

TEST(EventQueue, NegativeDelayIsNowAndInfiniteIsNever) {
  EventQueue events;
  events.RunUntil(absl::Seconds(1));
  events.After(absl::Seconds(-5), [] {});
  events.After(absl::InfiniteDuration(), [] { FAIL(); });
  EXPECT_EQ(events.next_time(), absl::Seconds(1));
  EXPECT_TRUE(events.RunNext());
  EXPECT_FALSE(events.RunNext());
}

}  // namespace
}  // namespace syncline
