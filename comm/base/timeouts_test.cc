#include "comm/base/timeouts.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;

TEST(Timeouts, RefusesWhatIsOutOfRangeAndSaysTheRange) {
  for (absl::Duration bad :
       {-absl::Seconds(1), absl::ZeroDuration(), absl::Milliseconds(499),
        absl::Hours(1) + absl::Nanoseconds(1), absl::InfiniteDuration()}) {
    const absl::Status status = Timeouts::Validate(bad);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_THAT(std::string(status.message()), HasSubstr("500ms to 1h")) << bad;
  }
  EXPECT_TRUE(Timeouts::Validate(absl::Milliseconds(500)).ok());
  EXPECT_TRUE(Timeouts::Validate(absl::Hours(1)).ok());
  EXPECT_TRUE(Timeouts::Validate(kDefaultFailureTimeout).ok());
}

// Relations that must hold for a dead member to be replaced within the failure timeout.
TEST(Timeouts, FitIntoEachOtherForEveryFailureTimeout) {
  for (absl::Duration f : {absl::Milliseconds(500), absl::Seconds(3), absl::Seconds(10),
                           absl::Minutes(5), absl::Hours(1)}) {
    const Timeouts t = Timeouts::Derive(f);
    EXPECT_EQ(t.failure_timeout, f);
    EXPECT_GE(t.lease, 4 * t.heartbeat_interval) << "one lost heartbeat must not kill";
    // Detection takes a lease and at most one heartbeat more; the news takes one
    // heartbeat.
    EXPECT_LE(t.lease + 2 * t.heartbeat_interval, f);
    EXPECT_GT(t.link_silence, t.tolerated_cut) << "bytes that were cut come in time";
    EXPECT_LE(2 * t.connect_timeout, t.lease);
    // A cut may begin just before a heartbeat, and a new stream may take two slots.
    EXPECT_LE(t.heartbeat_interval + t.tolerated_cut + 2 * t.dial_slot, t.lease);
    EXPECT_LT(t.lease, t.coordinator_silence);
    EXPECT_GE(t.redial_after, 2 * t.heartbeat_interval) << "one late answer is no outage";
    EXPECT_LE(t.heartbeat_interval + t.redial_after, t.tolerated_cut)
        << "who dials only after the cut is late";
    EXPECT_LT(t.reconnect_grace, t.lease);
    EXPECT_GT(t.time_to_return, t.coordinator_silence + t.reconnect_grace);
    EXPECT_LE(t.control_deadline, t.lease);
    EXPECT_GT(t.no_progress, f);
    EXPECT_LE(t.shutdown_grace, absl::Seconds(1));
    EXPECT_GT(t.shutdown_grace, absl::ZeroDuration());
  }
}

TEST(Timeouts, DeriveTheDocumentedFractions) {
  const Timeouts t = Timeouts::Derive(absl::Seconds(10));
  EXPECT_EQ(t.heartbeat_interval, absl::Seconds(1));
  EXPECT_EQ(t.lease, absl::Seconds(6));
  EXPECT_EQ(t.connect_timeout, absl::Milliseconds(2500));
  EXPECT_EQ(t.time_to_return, absl::Seconds(20));
  EXPECT_EQ(t.link_silence, absl::Seconds(5));
  EXPECT_EQ(t.no_progress, absl::Seconds(50));
  EXPECT_EQ(t.control_deadline, absl::Seconds(5));
  EXPECT_EQ(t.shutdown_grace, absl::Seconds(1));
}

}  // namespace
}  // namespace syncline
