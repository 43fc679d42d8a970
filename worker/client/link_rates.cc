#include "worker/client/link_rates.h"

#include <cmath>

namespace syncline {
namespace {

// A shorter stretch would show how bytes come in bursts.
constexpr absl::Duration kStretch = absl::Milliseconds(20);
// A stretch that is longer than this was not watched.
constexpr absl::Duration kLookedAway = absl::Milliseconds(100);
// After this much time of arrivals a stretch counts half.
constexpr absl::Duration kHalfLife = absl::Milliseconds(250);

}  // namespace

void ArrivalRate::Observe(uint64_t received, absl::Duration now) {
  const absl::Duration passed = now - began_at_;
  if (received >= began_with_ && passed < kStretch) return;
  const bool is_whole = received >= began_with_ && passed <= kLookedAway;
  const bool is_arriving = is_whole && received > began_with_;
  if (is_arriving && pending_ > absl::ZeroDuration()) {
    const double kept = std::exp2(-absl::FDivDuration(pending_, kHalfLife));
    seen_bytes_ = seen_bytes_ * kept + static_cast<double>(pending_bytes_);
    seen_seconds_ = seen_seconds_ * kept + absl::ToDoubleSeconds(pending_);
    rate_ = seen_bytes_ / seen_seconds_;
  }
  const bool lies_between = is_arriving && was_arriving_;
  pending_ = lies_between ? passed : absl::ZeroDuration();
  pending_bytes_ = lies_between ? received - began_with_ : 0;
  was_arriving_ = is_arriving;
  began_at_ = now;
  began_with_ = received;
}

void LinkRates::Observe(const SendState& sent, uint64_t received, absl::Duration now) {
  const bool goes_back =
      sent.accepted_bytes < sent_.accepted_bytes || sent.gone_bytes < sent_.gone_bytes;
  if (goes_back) window_ = {};
  sent_ = sent;
  window_.Observe(sent, now);
  if (window_.bytes_per_second() > 0) sent_rate_ = window_.bytes_per_second();
  arrivals_.Observe(received, now);
}

}  // namespace syncline
