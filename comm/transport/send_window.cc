#include "comm/transport/send_window.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

#include "comm/base/limits.h"

namespace syncline {
namespace {

// Senders observe about 100 times a second, and after every message; this leaves a
// margin.
constexpr absl::Duration kLookAway = absl::Milliseconds(20);
// Every sender has the same share, however fast it is. Only slow links, on which kShare
// would take more than about 50 ms, have less: kLeastShare, the same for all, and what
// they carry in kShareTime.
constexpr size_t kShare = size_t{64} << 10;
constexpr size_t kLeastShare = size_t{8} << 10;
constexpr absl::Duration kShareTime = absl::Milliseconds(45);
constexpr absl::Duration kUnknownRoundTrip = absl::Milliseconds(100);
// A shorter measurement would show how bytes come in bursts.
constexpr absl::Duration kShortestStretch = absl::Milliseconds(20);
constexpr absl::Duration kPiece = absl::Milliseconds(10);
constexpr size_t kShortestPiece = size_t{8} << 10;
constexpr size_t kUnknownPiece = size_t{64} << 10;
// After this much busy time an observation counts half.
constexpr absl::Duration kHalfLife = absl::Milliseconds(250);

}  // namespace

void SendWindow::Observe(const SendState& state, absl::Duration now) {
  MeasureRate(state, now);
  last_ = state;
  if (rate_ == 0) return;
  const bool is_known = state.round_trip > absl::ZeroDuration();
  const absl::Duration round_trip = is_known ? state.round_trip : kUnknownRoundTrip;
  const double bytes = rate_ * absl::ToDoubleSeconds(kLookAway + round_trip);
  const double own_share = rate_ * absl::ToDoubleSeconds(kShareTime);
  const size_t share = std::min(kShare, kLeastShare + static_cast<size_t>(own_share));
  limit_ = std::min(share + static_cast<size_t>(bytes), kDefaultWindowBytes);
}

// A measurement begins when the first bytes have gone: the time before that was their
// latency.
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
  // If nothing waits any more, the link may have been idle for part of the time.
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

// If messages of later classes are queued, a new message overtakes them. The transport
// itself limits what nothing can overtake, so only the queued bytes of this class and of
// earlier ones count.
size_t SendWindow::Room(const SendState& state, TrafficClass traffic_class) const {
  const auto lane = static_cast<size_t>(traffic_class);
  const std::span<const uint64_t> queued = state.queued_bytes;
  const auto sum = [](std::span<const uint64_t> bytes) {
    return std::accumulate(bytes.begin(), bytes.end(), uint64_t{0});
  };
  const uint64_t before = sum(queued.first(lane));
  const bool overtakes = sum(queued.subspan(lane + 1)) > 0;
  const uint64_t waiting = overtakes ? before + queued[lane] : state.waiting_bytes();
  if (waiting < limit_) return limit_ - static_cast<size_t>(waiting);
  return before > 0 && queued[lane] == 0 ? 1 : 0;
}

bool SendWindow::HasRoomInHands(const SendState& in_hands) const {
  return in_hands.waiting_bytes() < limit_;
}

size_t SendWindow::piece_bytes() const {
  if (rate_ == 0) return kUnknownPiece;
  return std::clamp(static_cast<size_t>(rate_ * absl::ToDoubleSeconds(kPiece)),
                    kShortestPiece, kMaxMessagePayloadBytes);
}

size_t SendWindow::Room(const SendState& state) const {
  const uint64_t waiting = state.waiting_bytes();
  return waiting >= limit_ ? 0 : limit_ - static_cast<size_t>(waiting);
}

}  // namespace syncline
