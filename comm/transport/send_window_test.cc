#include "comm/transport/send_window.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace syncline {
namespace {

constexpr size_t kMessage = size_t{128} << 10;
constexpr absl::Duration kTick = absl::Milliseconds(5);

// A sender that always has messages to send while it runs.
struct Sender {
  explicit Sender(absl::Duration round_trip) { state.round_trip = round_trip; }

  SendState state;
  SendWindow window;
  bool is_running = true;
  uint64_t most_waiting = 0;
};

// A cable that carries the given number of bytes a second, in the order in which the
// senders put them on it. It reports them as gone one round trip later.
class Cable {
 public:
  Cable(double bytes_per_second, absl::Duration round_trip, int senders = 1)
      : bytes_per_second_(bytes_per_second),
        round_trip_(round_trip),
        senders_(static_cast<size_t>(senders), Sender(round_trip)) {}

  // Lets a burst through at once before the rate applies, as `tc tbf` and real switches
  // do.
  void AllowBurst(uint64_t bytes) { allowed_ += static_cast<double>(bytes); }

  void RunFor(absl::Duration time) {
    for (const absl::Duration end = now_ + time; now_ < end;) {
      for (size_t i = 0; i < senders_.size(); ++i) Fill(i);
      now_ += kTick;
      Carry();
      for (; !known_.empty() && known_.front().at <= now_; known_.pop_front()) {
        senders_[known_.front().sender].state.gone_bytes += known_.front().bytes;
      }
      for (Sender& sender : senders_) sender.window.Observe(sender.state, now_);
    }
  }

  Sender& sender(size_t i) { return senders_[i]; }

  // Returns the bytes since the last call.
  uint64_t TakeGone(size_t i) {
    const uint64_t gone = senders_[i].state.gone_bytes;
    return gone - std::exchange(told_[i], gone);
  }
  uint64_t TakeMostWaiting() { return std::exchange(senders_[0].most_waiting, 0); }

 private:
  struct Run {
    size_t sender = 0;
    uint64_t bytes = 0;
    absl::Duration at = {};
  };

  void Fill(size_t i) {
    Sender& sender = senders_[i];
    while (sender.is_running && sender.window.Room(sender.state) > 0) {
      sender.state.accepted_bytes += kMessage;
      queue_.push_back({i, kMessage});
    }
    sender.most_waiting = std::max(sender.most_waiting, sender.state.waiting_bytes());
  }

  void Carry() {
    allowed_ += bytes_per_second_ * absl::ToDoubleSeconds(kTick);
    while (!queue_.empty() && allowed_ >= 1) {
      Run& first = queue_.front();
      const auto bytes = std::min(first.bytes, static_cast<uint64_t>(allowed_));
      allowed_ -= static_cast<double>(bytes);
      known_.push_back({first.sender, bytes, now_ + round_trip_});
      first.bytes -= bytes;
      if (first.bytes == 0) queue_.pop_front();
    }
    if (queue_.empty()) allowed_ = 0;
  }

  const double bytes_per_second_;
  const absl::Duration round_trip_;
  std::vector<Sender> senders_;
  std::deque<Run> queue_;
  std::deque<Run> known_;
  double allowed_ = 0;
  absl::Duration now_ = absl::ZeroDuration();
  std::array<uint64_t, 2> told_ = {};
};

TEST(SendWindow, KeepsASlowLinkBusyWithLittleOnItsWay) {
  Cable cable(1.25e6, absl::Milliseconds(10));  // 10 Mbit/s
  cable.RunFor(absl::Seconds(2));
  EXPECT_NEAR(cable.sender(0).window.bytes_per_second(), 1.25e6, 0.05e6);
  cable.TakeGone(0);
  cable.TakeMostWaiting();
  cable.RunFor(absl::Seconds(20));
  EXPECT_LT(cable.TakeMostWaiting(), kMessage + 120'000);
  EXPECT_GT(cable.TakeGone(0), 0.98 * 20 * 1.25e6);
}

TEST(SendWindow, DoesNotTakeABurstForTheRateOfALink) {
  Cable cable(1.25e6, absl::Milliseconds(10));
  cable.AllowBurst(512 << 10);
  cable.RunFor(absl::Seconds(1));
  cable.TakeMostWaiting();
  cable.RunFor(absl::Seconds(1));
  EXPECT_LT(cable.TakeMostWaiting(), kMessage + 180'000);
}

TEST(SendWindow, HasRoomForWhatOvertakesWhatIsQueued) {
  Cable cable(1.25e6, absl::Milliseconds(10));
  cable.RunFor(absl::Seconds(2));
  const SendWindow& window = cable.sender(0).window;
  const size_t limit = window.limit_bytes();
  SendState state = {.accepted_bytes = 10 * limit, .gone_bytes = 0};
  for (size_t i = 0; i < kTrafficClasses; ++i) {
    EXPECT_EQ(window.Room(state, static_cast<TrafficClass>(i)), 0u)
        << "nothing is queued";
  }
  state.queued_bytes = {0, 0, 9 * limit, 0};
  EXPECT_EQ(window.Room(state, TrafficClass::kControl), limit);
  EXPECT_EQ(window.Room(state, TrafficClass::kUrgent), limit);
  EXPECT_EQ(window.Room(state, TrafficClass::kOther), 0u);
  EXPECT_EQ(window.Room(state, TrafficClass::kBackground), 1u) << "its share is of use";
  state.queued_bytes = {0, 2 * limit, 6 * limit, limit};
  EXPECT_EQ(window.Room(state, TrafficClass::kControl), limit);
  for (size_t i = 1; i < kTrafficClasses; ++i) {
    EXPECT_EQ(window.Room(state, static_cast<TrafficClass>(i)), 0u);
  }
}

TEST(SendWindow, PiecesTakeTenMilliseconds) {
  EXPECT_EQ(SendWindow().piece_bytes(), 65536u) << "not known yet";
  Cable slow(125e3, absl::Milliseconds(10)), fast(125e6, absl::Milliseconds(5));
  slow.RunFor(absl::Seconds(3));
  fast.RunFor(absl::Seconds(3));
  EXPECT_EQ(slow.sender(0).window.piece_bytes(), 8192u);
  EXPECT_LT(slow.sender(0).window.limit_bytes(), 20000u);
  EXPECT_NEAR(static_cast<double>(fast.sender(0).window.piece_bytes()), 1.25e6, 0.1e6);
}

TEST(SendWindow, FillsAFastLink) {
  Cable cable(125e6, absl::Milliseconds(5));  // 1 Gbit/s
  cable.RunFor(absl::Seconds(2));
  cable.TakeGone(0);
  cable.TakeMostWaiting();
  cable.RunFor(absl::Seconds(2));
  EXPECT_GT(cable.TakeGone(0), 0.97 * 250e6);
  EXPECT_LT(cable.TakeMostWaiting(), 125e6 * 0.03 + kMessage);
}

TEST(SendWindow, FillsALongLink) {
  Cable cable(25e6, absl::Milliseconds(200));  // 200 Mbit/s across an ocean
  cable.RunFor(absl::Seconds(10));
  cable.TakeGone(0);
  cable.RunFor(absl::Seconds(4));
  EXPECT_GT(cable.TakeGone(0), 0.95 * 100e6);
}

TEST(SendWindow, ALongLinkWhoseDelayIsUnknownIsFilledUpTo100Milliseconds) {
  Cable cable(25e6, absl::Milliseconds(80));
  cable.sender(0).state.round_trip = absl::ZeroDuration();
  cable.RunFor(absl::Seconds(10));
  cable.TakeGone(0);
  cable.RunFor(absl::Seconds(4));
  EXPECT_GT(cable.TakeGone(0), 0.95 * 100e6);
}

TEST(SendWindow, WhoeverComesLaterSoonHasHalfOfTheCable) {
  for (const double bytes_per_second : {1.25e6, 12.5e6}) {
    Cable cable(bytes_per_second, absl::Milliseconds(1), 2);
    cable.sender(1).is_running = false;
    cable.RunFor(absl::Seconds(3));
    cable.sender(1).is_running = true;
    cable.RunFor(absl::Seconds(2));
    cable.TakeGone(0);
    cable.TakeGone(1);
    cable.RunFor(absl::Seconds(8));
    const auto first = static_cast<double>(cable.TakeGone(0));
    const auto second = static_cast<double>(cable.TakeGone(1));
    EXPECT_GT(second, 0.8 * first) << bytes_per_second;
    EXPECT_GT(first + second, 0.97 * 8 * bytes_per_second);
  }
}

TEST(SendWindow, DoesNotTakePausesForASlowLink) {
  Cable cable(12.5e6, absl::Milliseconds(5));
  cable.RunFor(absl::Seconds(2));
  for (int i = 0; i < 20; ++i) {
    cable.sender(0).is_running = false;
    cable.RunFor(absl::Seconds(1));
    cable.sender(0).is_running = true;
    cable.RunFor(absl::Milliseconds(400));
  }
  EXPECT_GT(cable.sender(0).window.bytes_per_second(), 0.9 * 12.5e6);
}

TEST(SendWindow, HasRoomForOneMessageBeforeAnythingIsKnown) {
  SendWindow window;
  EXPECT_GT(window.Room({}), 0u);
  EXPECT_EQ(window.Room({.accepted_bytes = size_t{2} << 20}), 0u);
}

}  // namespace
}  // namespace syncline
