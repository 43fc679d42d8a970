#include "worker/client/send_pace.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace syncline {
namespace {

constexpr size_t kBlock = size_t{128} << 10;
constexpr absl::Duration kTick = absl::Milliseconds(1);

SendPace::Look Held(size_t blocks) {
  return {.held_bytes = blocks * kBlock,
          .ahead_bytes = blocks * kBlock,
          .block_bytes = kBlock,
          .window_bytes = 100'000,
          .bytes_per_second = 12.5e6};
}

TEST(SendPace, WaitsWhileItIsAheadAndViewsCome) {
  SendPace pace;
  EXPECT_TRUE(pace.MaySend(Held(0), absl::ZeroDuration()));
  EXPECT_TRUE(pace.MaySend(Held(2), kTick));
  EXPECT_FALSE(pace.MaySend(Held(4), 2 * kTick));
  EXPECT_FALSE(pace.MaySend(Held(3), 40 * kTick));  // a view has arrived
  EXPECT_FALSE(pace.MaySend(Held(3), 60 * kTick));
  EXPECT_TRUE(pace.MaySend(Held(2), 61 * kTick));
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

TEST(SendPace, WhatLiesBehindTheNextBlockIsNotAhead) {
  SendPace pace;
  pace.MaySend(Held(0), absl::ZeroDuration());
  SendPace::Look look = Held(20);
  look.ahead_bytes = 2 * kBlock;
  EXPECT_TRUE(pace.MaySend(look, kTick));
}

struct Cable {
  double bytes_per_second = 12.5e6;
  size_t window_bytes = 200'000;
};
constexpr Cable kSlow = {.bytes_per_second = 1.25e6, .window_bytes = 90'000};

// Two workers push the blocks of a step to one server. Each block's view is sent to both
// once both have pushed it. While both send, TCP gives the first worker four times as
// much bandwidth as the second.
class Step {
 public:
  static constexpr uint32_t kBlocks = 60;

  enum class Counts { kNothing, kAhead, kAllHeld };
  using Order = std::vector<uint32_t>;

  Step(Counts counts, std::array<Order, 2> orders, Cable cable = {})
      : counts_(counts), orders_(std::move(orders)), cable_(cable) {}

  double Seconds() {
    absl::Duration now = absl::ZeroDuration();
    while (std::min(viewed_[0], viewed_[1]) < orders_[0].size() * kBlock) {
      now += kTick;
      std::array<bool, 2> sends = {};
      for (size_t i = 0; i < 2; ++i) sends[i] = Sends(i, now);
      MoveUp(sends);
      MoveDown();
    }
    return absl::ToDoubleSeconds(now);
  }

 private:
  bool Sends(size_t i, absl::Duration now) {
    const size_t pushed = pushed_[i] / kBlock;
    if (pushed >= orders_[i].size()) return false;
    SendPace::Look look = {.block_bytes = kBlock,
                           .window_bytes = cable_.window_bytes,
                           .bytes_per_second = cable_.bytes_per_second / 2};
    const auto viewed_end =
        made_.begin() + static_cast<std::ptrdiff_t>(viewed_[i] / kBlock);
    for (size_t n = 0; n < pushed; ++n) {
      const uint32_t block = orders_[i][n];
      if (std::find(made_.begin(), viewed_end, block) != viewed_end) continue;
      look.held_bytes += kBlock;
      const bool is_counted = counts_ == Counts::kAllHeld || block < orders_[i][pushed];
      if (is_counted) look.ahead_bytes += kBlock;
    }
    const bool may_send = pace_[i].MaySend(look, now);
    // A block whose sending has begun continues.
    return counts_ == Counts::kNothing || may_send || pushed_[i] % kBlock != 0;
  }

  void MoveUp(const std::array<bool, 2>& sends) {
    const std::array<double, 2> weights = {sends[0] ? 4.0 : 0.0, sends[1] ? 1.0 : 0.0};
    const double all = weights[0] + weights[1];
    if (all == 0) return;
    for (size_t i = 0; i < 2; ++i) {
      const auto bytes = static_cast<uint64_t>(PerTick() * weights[i] / all);
      const uint64_t left = kBlock - pushed_[i] % kBlock;
      pushed_[i] += std::min(left, bytes);
      if (bytes >= left) Arrived(orders_[i][pushed_[i] / kBlock - 1]);
    }
  }

  void Arrived(uint32_t block) {
    if (++contributions_[block] == 2) made_.push_back(block);
  }

  void MoveDown() {
    const auto half = static_cast<uint64_t>(PerTick() / 2);
    for (uint64_t& viewed : viewed_) {
      viewed = std::min<uint64_t>(made_.size() * kBlock, viewed + half);
    }
  }

  double PerTick() const {
    return cable_.bytes_per_second * absl::ToDoubleSeconds(kTick);
  }

  Counts counts_;
  std::array<Order, 2> orders_;
  Cable cable_;
  std::array<SendPace, 2> pace_;
  std::array<uint64_t, 2> pushed_ = {};
  std::array<uint64_t, 2> viewed_ = {};
  std::array<int, kBlocks> contributions_ = {};
  std::vector<uint32_t> made_;  // blocks whose views were made, in order
};

// Returns the first `blocks` blocks, front layers first.
Step::Order InOrder(uint32_t blocks) {
  Step::Order order(blocks);
  std::iota(order.begin(), order.end(), 0u);
  return order;
}

// Returns the order of a worker whose last `behind` blocks were sent before backward had
// reached the front. The other blocks follow, front layers first.
Step::Order FrontFirstAfter(uint32_t behind) {
  Step::Order order;
  for (uint32_t n = 0; n < behind; ++n) order.push_back(Step::kBlocks - 1 - n);
  for (uint32_t n = 0; n < Step::kBlocks - behind; ++n) order.push_back(n);
  return order;
}

double Needed(const Cable& cable, size_t blocks) {
  return 2.0 * static_cast<double>(blocks * kBlock) / cable.bytes_per_second;
}

TEST(SendPace, KeepsBothWaysBusyWhereTcpIsUnfair) {
  const std::array<Step::Order, 2> same = {FrontFirstAfter(0), FrontFirstAfter(0)};
  EXPECT_GT(Step(Step::Counts::kNothing, same).Seconds(),
            1.3 * Needed({}, Step::kBlocks));
  EXPECT_LT(Step(Step::Counts::kAhead, same).Seconds(), 1.12 * Needed({}, Step::kBlocks));
}

// The blocks are one server's half of 4 million parameters. Views of blocks that are held
// at the end are sent when nothing arrives any more, and such a step is short.
TEST(SendPace, LittleIsLeftForTheEndOfAStepOfFewBlocks) {
  const std::array<Step::Order, 2> same = {InOrder(16), InOrder(16)};
  EXPECT_LT(Step(Step::Counts::kAhead, same, kSlow).Seconds(), 1.14 * Needed(kSlow, 16));
}

TEST(SendPace, NobodyWaitsForWhatOthersPushLater) {
  const std::array<Step::Order, 2> other = {FrontFirstAfter(12), FrontFirstAfter(2)};
  EXPECT_GT(Step(Step::Counts::kAllHeld, other).Seconds(),
            1.5 * Needed({}, Step::kBlocks));
  EXPECT_LT(Step(Step::Counts::kAhead, other).Seconds(), 1.2 * Needed({}, Step::kBlocks));
}

}  // namespace
}  // namespace syncline
