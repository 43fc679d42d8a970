#include "worker/client/link_rates.h"

#include <gtest/gtest.h>

namespace syncline {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(10);

class LinkRatesTest : public testing::Test {
 protected:
  // Lets time pass, in which bytes arrive at this speed.
  void Receive(double bytes_per_second, absl::Duration time) {
    for (absl::Duration passed = {}; passed < time; passed += kTick) {
      received_ += static_cast<uint64_t>(bytes_per_second * absl::ToDoubleSeconds(kTick));
      Look();
    }
  }
  // Sends as much, of which `waiting` bytes wait all the time.
  void Send(double bytes_per_second, absl::Duration time, uint64_t waiting) {
    sent_.accepted_bytes = sent_.gone_bytes + waiting;
    for (absl::Duration passed = {}; passed < time; passed += kTick) {
      const auto bytes =
          static_cast<uint64_t>(bytes_per_second * absl::ToDoubleSeconds(kTick));
      sent_.gone_bytes += bytes;
      sent_.accepted_bytes += bytes;
      Look();
    }
    sent_.gone_bytes = sent_.accepted_bytes;
    Look();
  }
  void Look() { rates_.Observe(sent_, received_, now_ += kTick); }

  LinkRates rates_;
  SendState sent_;
  uint64_t received_ = 0;
  absl::Duration now_ = absl::Seconds(100);
};

TEST_F(LinkRatesTest, AreUnknownWithoutTraffic) {
  Receive(0, absl::Seconds(1));
  EXPECT_EQ(rates_.sent_bytes_per_second(), 0);
  EXPECT_EQ(rates_.received_bytes_per_second(), 0);
}

TEST_F(LinkRatesTest, OfBurstsAreThoseOfTheirMiddle) {
  for (int step = 0; step < 20; ++step) {
    Receive(1.25e6, absl::Milliseconds(150));
    Receive(0, absl::Milliseconds(333));
  }
  EXPECT_NEAR(rates_.received_bytes_per_second(), 1.25e6, 1e4);
}

TEST_F(LinkRatesTest, OfShortBurstsAreUnknown) {
  for (int step = 0; step < 20; ++step) {
    Receive(1e9, absl::Milliseconds(20));
    Receive(0, absl::Milliseconds(100));
  }
  EXPECT_EQ(rates_.received_bytes_per_second(), 0);
}

TEST_F(LinkRatesTest, DoNotCountTimeInWhichNobodyLooked) {
  Receive(1e6, absl::Milliseconds(200));
  now_ += absl::Seconds(10);
  Receive(1e6, absl::Milliseconds(200));
  EXPECT_NEAR(rates_.received_bytes_per_second(), 1e6, 1e4);
}

TEST_F(LinkRatesTest, FollowALinkThatBecomesSlower) {
  Receive(1e7, absl::Seconds(2));
  Receive(1e6, absl::Seconds(2));
  EXPECT_NEAR(rates_.received_bytes_per_second(), 1e6, 1e5);
}

TEST_F(LinkRatesTest, OfTheWayOutAreMeasuredWhileBytesWait) {
  for (int step = 0; step < 5; ++step) {
    Send(2.5e6, absl::Milliseconds(300), 50'000);
    Receive(0, absl::Milliseconds(200));
  }
  EXPECT_NEAR(rates_.sent_bytes_per_second(), 2.5e6, 2.5e5);
}

TEST_F(LinkRatesTest, OutliveConnections) {
  Send(2.5e6, absl::Seconds(1), 50'000);
  Receive(1e6, absl::Seconds(1));
  sent_ = {};
  received_ = 0;
  Look();
  EXPECT_NEAR(rates_.sent_bytes_per_second(), 2.5e6, 2.5e5);
  EXPECT_NEAR(rates_.received_bytes_per_second(), 1e6, 1e5);
  Send(5e6, absl::Seconds(2), 50'000);
  Receive(2e6, absl::Seconds(2));
  EXPECT_NEAR(rates_.sent_bytes_per_second(), 5e6, 5e5);
  EXPECT_NEAR(rates_.received_bytes_per_second(), 2e6, 2e5);
}

}  // namespace
}  // namespace syncline
