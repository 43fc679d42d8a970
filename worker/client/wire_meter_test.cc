#include "worker/client/wire_meter.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

constexpr size_t kMiB = 1 << 20;
constexpr absl::Duration kNone = absl::ZeroDuration();

absl::Duration At(int milliseconds) { return absl::Milliseconds(milliseconds); }

TEST(WireMeter, MeasuresFromTheFirstSendToTheLastAnswer) {
  WireMeter meter;
  meter.Sent(At(10), kNone);
  meter.Sent(At(11), kNone);
  EXPECT_FALSE(meter.Acknowledged({.bytes = kMiB}, At(15), kNone));
  const auto carried = meter.Acknowledged({.bytes = kMiB}, At(30), kNone);
  ASSERT_TRUE(carried);
  EXPECT_EQ(carried->bytes, 2 * kMiB);
  EXPECT_EQ(carried->time, At(20));
}

TEST(WireMeter, LeavesOutTheTimeOfEncoding) {
  WireMeter meter;
  meter.Sent(At(10), At(100));
  EXPECT_EQ(meter.Acknowledged({.bytes = kMiB}, At(30), At(105))->time, At(15));
  meter.Sent(At(40), At(105));
  EXPECT_GT(meter.Acknowledged({.bytes = kMiB}, At(50), At(200))->time, kNone);
}

// Blocks that are encoded one by one are also sent one by one.
TEST(WireMeter, LeavesOutTheTimeInWhichNothingIsUnderWay) {
  WireMeter meter;
  for (const int begin : {10, 100, 1000}) {
    meter.Sent(At(begin), kNone);
    EXPECT_FALSE(
        meter.Acknowledged({.bytes = 1000, .more_comes = true}, At(begin + 1), kNone));
  }
  meter.Sent(At(2000), kNone);
  const auto carried = meter.Acknowledged({.bytes = kMiB}, At(2004), kNone);
  ASSERT_TRUE(carried);
  EXPECT_EQ(carried->bytes, kMiB + 3000);
  EXPECT_EQ(carried->time, At(7));
  meter.Sent(At(3000), kNone);
  EXPECT_EQ(meter.Acknowledged({.bytes = kMiB}, At(3005), kNone)->time, At(5));
}

TEST(WireMeter, SaysNothingOfAFewBytes) {
  WireMeter meter;
  meter.Sent(At(10), kNone);
  EXPECT_FALSE(meter.Acknowledged({.bytes = 1000}, At(30), kNone));
}

TEST(WireMeter, SaysNothingOfRunsWithRepetitions) {
  WireMeter meter;
  meter.Sent(At(10), kNone);
  meter.Sent(At(10), kNone);
  meter.Lost();
  EXPECT_FALSE(meter.Acknowledged({.bytes = kMiB}, At(2000), kNone));
  meter.Sent(At(3000), kNone);
  EXPECT_EQ(meter.Acknowledged({.bytes = kMiB}, At(3010), kNone)->time, At(10));
  EXPECT_FALSE(meter.Acknowledged({.bytes = kMiB}, At(3020), kNone))
      << "nothing was under way";
}

}  // namespace
}  // namespace syncline
