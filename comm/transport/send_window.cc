#include "comm/transport/send_window.h"

#include <algorithm>
#include <cmath>

#include "comm/base/limits.h"

namespace syncline {
namespace {

// An urgent message waits for so long at most, or for one other.
constexpr absl::Duration kQueue = absl::Milliseconds(100);
// Shorter stretches measure how bytes come in bursts.
constexpr absl::Duration kShortestStretch = absl::Milliseconds(20);
constexpr uint64_t kSmallBytes = 4096;
// A rate that is not seen again loses half of itself in this time.
constexpr absl::Duration kHalfLife = absl::Seconds(2);
constexpr size_t kLeast = size_t{16} << 10;

}  // namespace

void SendWindow::Observe(const SendState& state, absl::Duration now) {
  MeasureDelay(state, now);
  MeasureRate(state, now);
  last_ = state;
  last_at_ = now;
  if (rate_ == 0) return;
  const absl::Duration delay = delay_ == absl::InfiniteDuration() ? kQueue : delay_;
  const double bytes = rate_ * absl::ToDoubleSeconds(kQueue + delay);
  limit_ = std::clamp(static_cast<size_t>(bytes), kLeast, kDefaultWindowBytes);
}

void SendWindow::MeasureDelay(const SendState& state, absl::Duration now) {
  if (marked_bytes_ > 0 && state.gone_bytes >= marked_bytes_) {
    delay_ = std::min(delay_, now - marked_at_);
    marked_bytes_ = 0;
  }
  const uint64_t added = state.accepted_bytes - last_.accepted_bytes;
  const bool was_idle = last_.waiting_bytes() == 0;
  if (was_idle && added > 0 && added <= kSmallBytes && state.waiting_bytes() > 0) {
    marked_bytes_ = state.accepted_bytes;
    marked_at_ = now;
  }
}

// A stretch begins when the first bytes have gone: what passed before was their way.
void SendWindow::MeasureRate(const SendState& state, absl::Duration now) {
  const bool was_busy = last_.waiting_bytes() > 0;
  const bool has_moved = state.gone_bytes > last_.gone_bytes;
  if (!is_measuring_) {
    is_measuring_ = was_busy && has_moved && state.waiting_bytes() > 0;
    gone_at_start_ = state.gone_bytes;
    started_at_ = now;
    return;
  }
  const absl::Duration passed = now - started_at_;
  const uint64_t gone = state.gone_bytes - gone_at_start_;
  // Once nothing waits, part of the time may have been idle.
  const bool is_over = state.waiting_bytes() == 0;
  if (!is_over && passed >= kShortestStretch && has_moved) {
    const double seen = static_cast<double>(gone) / absl::ToDoubleSeconds(passed);
    const double age = absl::FDivDuration(now - rated_at_, kHalfLife);
    rate_ = std::max(seen, rate_ * std::exp2(-age));
    rated_at_ = now;
    gone_at_start_ = state.gone_bytes;
    started_at_ = now;
  }
  if (is_over) is_measuring_ = false;
}

size_t SendWindow::Room(const SendState& state) const {
  const uint64_t waiting = state.waiting_bytes();
  return waiting >= limit_ ? 0 : limit_ - static_cast<size_t>(waiting);
}

}  // namespace syncline
