#include "worker/client/send_pace.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "gtest/gtest.h"

namespace syncline {
namespace {

constexpr size_t kBlock = size_t{128} << 10;
constexpr absl::Duration kTick = absl::Milliseconds(1);

SendPace::Look Held(size_t blocks) {
  return {.held_bytes = blocks * kBlock,
          .block_bytes = kBlock,
          .window_bytes = 100'000,
          .bytes_per_second = 12.5e6};
}

TEST(SendPace, WaitsWhileItIsAheadAndViewsCome) {
  SendPace pace;
  EXPECT_TRUE(pace.MaySend(Held(0), absl::ZeroDuration()));
  EXPECT_TRUE(pace.MaySend(Held(4), kTick));
  EXPECT_FALSE(pace.MaySend(Held(6), 2 * kTick));
  EXPECT_FALSE(pace.MaySend(Held(5), 50 * kTick));  // a view
  EXPECT_FALSE(pace.MaySend(Held(5), 90 * kTick));
  EXPECT_TRUE(pace.MaySend(Held(4), 91 * kTick));
}

TEST(SendPace, GoesOnWhenNoViewComes) {
  SendPace pace;
  pace.MaySend(Held(0), absl::ZeroDuration());
  EXPECT_FALSE(pace.MaySend(Held(8), absl::Milliseconds(60)));
  EXPECT_TRUE(pace.MaySend(Held(8), absl::Milliseconds(90)));
  EXPECT_FALSE(pace.MaySend(Held(7), absl::Milliseconds(100)));
}

TEST(SendPace, AFastLinkMayHoldMoreThanBlocks) {
  SendPace pace;
  pace.MaySend(Held(0), absl::ZeroDuration());
  SendPace::Look look = Held(20);
  look.window_bytes = 11 * kBlock;
  EXPECT_TRUE(pace.MaySend(look, kTick));
}

// Two workers push a step of 60 blocks to one server, whose cable carries 100 Mbit/s each
// way, and each block's view goes to both once both have pushed it. TCP gives the first
// worker four times as much of the way in as the second, while both send.
class Step {
 public:
  enum class Pace { kNone, kFair };

  double SecondsWith(Pace pace) {
    absl::Duration now = absl::ZeroDuration();
    while (std::min(viewed_[0], viewed_[1]) < kBlocks * kBlock) {
      now += kTick;
      std::array<bool, 2> sends = {};
      for (size_t i = 0; i < 2; ++i) sends[i] = Sends(i, pace, now);
      MoveUp(sends);
      MoveDown();
    }
    return absl::ToDoubleSeconds(now);
  }

  static constexpr size_t kBlocks = 60;
  static constexpr double kBytesPerSecond = 12.5e6;

 private:
  static constexpr double kPerTick = kBytesPerSecond / 1000;

  bool Sends(size_t i, Pace pace, absl::Duration now) {
    if (pushed_[i] >= kBlocks * kBlock) return false;
    const size_t held = pushed_[i] / kBlock - viewed_[i] / kBlock;
    const SendPace::Look look = {.held_bytes = held * kBlock,
                                 .block_bytes = kBlock,
                                 .window_bytes = 200'000,
                                 .bytes_per_second = kBytesPerSecond / 2};
    const bool may_send = pace_[i].MaySend(look, now);
    // A block that was begun goes on.
    return pace == Pace::kNone || may_send || pushed_[i] % kBlock != 0;
  }

  void MoveUp(const std::array<bool, 2>& sends) {
    const std::array<double, 2> weights = {sends[0] ? 4.0 : 0.0, sends[1] ? 1.0 : 0.0};
    const double all = weights[0] + weights[1];
    if (all == 0) return;
    for (size_t i = 0; i < 2; ++i) {
      const auto bytes = static_cast<uint64_t>(kPerTick * weights[i] / all);
      const uint64_t left = kBlock - pushed_[i] % kBlock;
      pushed_[i] += std::min(left, bytes);
    }
  }

  void MoveDown() {
    const uint64_t ready = std::min(pushed_[0], pushed_[1]) / kBlock * kBlock;
    const auto half = static_cast<uint64_t>(kPerTick / 2);
    for (uint64_t& viewed : viewed_) viewed = std::min(ready, viewed + half);
  }

  std::array<SendPace, 2> pace_;
  std::array<uint64_t, 2> pushed_ = {};
  std::array<uint64_t, 2> viewed_ = {};
};

TEST(SendPace, KeepsBothWaysBusyWhereTcpIsUnfair) {
  const double needed = 2 * Step::kBlocks * kBlock / Step::kBytesPerSecond;
  EXPECT_GT(Step().SecondsWith(Step::Pace::kNone), 1.3 * needed);
  EXPECT_LT(Step().SecondsWith(Step::Pace::kFair), 1.12 * needed);
}

}  // namespace
}  // namespace syncline
