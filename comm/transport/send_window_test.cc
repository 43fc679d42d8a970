#include "comm/transport/send_window.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "gtest/gtest.h"

namespace syncline {
namespace {

constexpr size_t kMessage = size_t{2} << 20;

// A link that carries so many bytes a second, each for so long, and a sender that is never
// short of messages.
class Link {
 public:
  Link(double bytes_per_second, absl::Duration delay)
      : rate_(bytes_per_second), delay_(delay) {}

  // A greeting, as each connection has.
  void Greet() {
    state_.accepted_bytes += 300;
    window_.Observe(state_, now_);
    const absl::Duration arrival = now_ + delay_;
    while (now_ < arrival) now_ += kTick;
    state_.gone_bytes = left_ = state_.accepted_bytes;
    window_.Observe(state_, now_);
  }

  void RunFor(absl::Duration time) {
    for (const absl::Duration end = now_ + time; now_ < end;) {
      while (window_.Room(state_) > 0) state_.accepted_bytes += kMessage;
      most_waiting_ = std::max(most_waiting_, state_.waiting_bytes());
      Move();
      window_.Observe(state_, now_);
    }
  }
  void RestFor(absl::Duration time) {
    for (const absl::Duration end = now_ + time; now_ < end;) {
      Move();
      window_.Observe(state_, now_);
    }
  }

  const SendWindow& window() const { return window_; }
  uint64_t gone_bytes() const { return state_.gone_bytes; }
  uint64_t TakeMostWaiting() { return std::exchange(most_waiting_, 0); }

 private:
  static constexpr absl::Duration kTick = absl::Milliseconds(5);

  void Move() {
    now_ += kTick;
    const auto most = static_cast<uint64_t>(rate_ * absl::ToDoubleSeconds(kTick));
    left_ = std::min(left_ + most, state_.accepted_bytes);
    const auto ticks = static_cast<size_t>(delay_ / kTick);
    history_[at_++ % history_.size()] = left_;
    if (at_ > ticks) {
      state_.gone_bytes =
          std::max(state_.gone_bytes, history_[(at_ - 1 - ticks) % history_.size()]);
    }
  }

  const double rate_;
  const absl::Duration delay_;
  absl::Duration now_ = absl::ZeroDuration();
  SendWindow window_;
  SendState state_;
  uint64_t left_ = 0;  // this host
  std::array<uint64_t, 1024> history_ = {};
  size_t at_ = 0;
  uint64_t most_waiting_ = 0;
};

TEST(SendWindow, KeepsASlowLinkBusyWithOneMessage) {
  Link link(1.25e6, absl::Milliseconds(10));  // 10 Mbit/s
  link.Greet();
  link.RunFor(absl::Seconds(10));
  EXPECT_NEAR(link.window().bytes_per_second(), 1.25e6, 0.05e6);
  link.TakeMostWaiting();
  link.RunFor(absl::Seconds(20));
  EXPECT_LT(link.TakeMostWaiting(), kMessage + 200'000);
  EXPECT_GT(link.gone_bytes(), 29 * 1.25e6);
}

TEST(SendWindow, HoldsAboutATenthOfASecondOfAFastLink) {
  Link link(125e6, absl::Milliseconds(5));  // 1 Gbit/s
  link.Greet();
  link.RunFor(absl::Seconds(2));
  link.TakeMostWaiting();
  const uint64_t before = link.gone_bytes();
  link.RunFor(absl::Seconds(2));
  EXPECT_GT(link.gone_bytes() - before, 0.97 * 250e6);
  EXPECT_LT(link.TakeMostWaiting(), 125e6 * 0.12 + kMessage);
}

TEST(SendWindow, FillsALongLink) {
  Link link(25e6, absl::Milliseconds(200));  // 200 Mbit/s across an ocean
  link.Greet();
  link.RunFor(absl::Seconds(10));
  const uint64_t before = link.gone_bytes();
  link.RunFor(absl::Seconds(4));
  EXPECT_GT(link.gone_bytes() - before, 0.95 * 100e6);
}

TEST(SendWindow, DoesNotTakePausesForASlowLink) {
  Link link(12.5e6, absl::Milliseconds(5));
  link.Greet();
  link.RunFor(absl::Seconds(2));
  for (int i = 0; i < 20; ++i) {
    link.RestFor(absl::Seconds(1));
    link.RunFor(absl::Milliseconds(400));
  }
  EXPECT_GT(link.window().bytes_per_second(), 0.9 * 12.5e6);
}

TEST(SendWindow, HasRoomForOneMessageBeforeAnythingIsKnown) {
  SendWindow window;
  EXPECT_GT(window.Room({}), 0u);
  EXPECT_EQ(window.Room({.accepted_bytes = kMessage}), 0u);
}

}  // namespace
}  // namespace syncline
