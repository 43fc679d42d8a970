#include "comm/transport/send_window.h"

#include <algorithm>
#include <cmath>

#include "comm/base/limits.h"

namespace syncline {
namespace {

// Senders look 100 times a second, and after every message.
constexpr absl::Duration kLookAway = absl::Milliseconds(20);
// Of everybody, however fast.
constexpr size_t kShare = size_t{64} << 10;
constexpr absl::Duration kUnknownRoundTrip = absl::Milliseconds(100);
// Shorter stretches measure how bytes come in bursts.
constexpr absl::Duration kShortestStretch = absl::Milliseconds(20);
// Of busy time, after which what was seen counts half.
constexpr absl::Duration kHalfLife = absl::Milliseconds(250);

}  // namespace

void SendWindow::Observe(const SendState& state, absl::Duration now) {
  MeasureRate(state, now);
  last_ = state;
  if (rate_ == 0) return;
  const bool is_known = state.round_trip > absl::ZeroDuration();
  const absl::Duration round_trip = is_known ? state.round_trip : kUnknownRoundTrip;
  const double bytes = rate_ * absl::ToDoubleSeconds(kLookAway + round_trip);
  limit_ = std::min(kShare + static_cast<size_t>(bytes), kDefaultWindowBytes);
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
    const double kept = std::exp2(-absl::FDivDuration(passed, kHalfLife));
    seen_bytes_ = seen_bytes_ * kept + static_cast<double>(gone);
    seen_seconds_ = seen_seconds_ * kept + absl::ToDoubleSeconds(passed);
    rate_ = seen_bytes_ / seen_seconds_;
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
