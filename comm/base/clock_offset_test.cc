#include "comm/base/clock_offset.h"

#include "gtest/gtest.h"

namespace syncline {
namespace {

constexpr absl::Duration kAhead = absl::Seconds(1000);

TEST(ClockOffset, KnowsNothingBeforeAnAnswer) {
  ClockOffset offset;
  EXPECT_FALSE(offset.At(absl::ZeroDuration()));
  offset.Asked(1, absl::Seconds(1));
  EXPECT_FALSE(offset.At(absl::Seconds(2)));
}

TEST(ClockOffset, ErrsByAtMostItsBoundHoweverLongEachWayTakes) {
  for (const int up_ms : {0, 1, 9, 10}) {
    ClockOffset offset;
    const absl::Duration asked = absl::Seconds(5);
    const absl::Duration answered = asked + absl::Milliseconds(10);
    offset.Asked(7, asked);
    offset.Answered(7, asked + absl::Milliseconds(up_ms) + kAhead, answered);
    const auto reading = offset.At(answered);
    ASSERT_TRUE(reading);
    EXPECT_EQ(reading->error, absl::Milliseconds(5));
    EXPECT_LE(absl::AbsDuration(reading->offset - kAhead), reading->error) << up_ms;
  }
}

TEST(ClockOffset, TakesTheSampleWithTheShortestRoundTrip) {
  ClockOffset offset;
  offset.Asked(1, absl::Seconds(1));
  offset.Answered(1, absl::Seconds(1) + kAhead,
                  absl::Seconds(1.4));  // late on its way back
  offset.Asked(2, absl::Seconds(2));
  offset.Answered(2, absl::Seconds(2.0005) + kAhead, absl::Seconds(2.001));
  offset.Asked(3, absl::Seconds(3));
  offset.Answered(3, absl::Seconds(3.3) + kAhead,
                  absl::Seconds(3.3));  // late on its way up
  const auto reading = offset.At(absl::Seconds(3.3));
  ASSERT_TRUE(reading);
  EXPECT_LT(absl::AbsDuration(reading->offset - kAhead), absl::Nanoseconds(10));
  EXPECT_LT(reading->error, absl::Milliseconds(1));
}

TEST(ClockOffset, AnOldSampleIsWorthLessThanANewOne) {
  ClockOffset offset;
  offset.Asked(1, absl::Seconds(1));
  offset.Answered(1, absl::Seconds(1.001) + kAhead, absl::Seconds(1.002));
  const absl::Duration later =
      absl::Seconds(1001);  // the clocks may be 100 ms apart by now
  offset.Asked(2, later);
  offset.Answered(2, later + absl::Milliseconds(5) + kAhead + absl::Milliseconds(50),
                  later + absl::Milliseconds(10));
  const auto reading = offset.At(later + absl::Milliseconds(10));
  ASSERT_TRUE(reading);
  EXPECT_EQ(reading->offset, kAhead + absl::Milliseconds(50));
}

TEST(ClockOffset, AnswersToNoQuestionCountForNothing) {
  ClockOffset offset;
  offset.Asked(2, absl::Seconds(1));
  offset.Answered(1, kAhead, absl::Seconds(2));
  EXPECT_FALSE(offset.At(absl::Seconds(2)));
  offset.Answered(2, absl::Seconds(1) + kAhead, absl::Seconds(2));
  offset.Answered(2, absl::Seconds(9), absl::Seconds(2));  // answered twice
  offset.Asked(3, absl::Seconds(2));
  offset.Answered(3, absl::ZeroDuration(), absl::Seconds(2));  // from an older version
  ASSERT_TRUE(offset.At(absl::Seconds(2)));
  EXPECT_EQ(offset.At(absl::Seconds(2))->offset, kAhead - absl::Seconds(0.5));
}

}  // namespace
}  // namespace syncline
