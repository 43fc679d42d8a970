#include "comm/rpc/dialer.h"

#include <algorithm>
#include <cmath>

namespace syncline {
namespace {

constexpr double kGrowth = 1.5;
// A slot is shortened by up to a fifth, never lengthened: a longer one could miss its
// deadline.
constexpr double kJitter = 0.2;
constexpr int kMaxExponent = 64;

}  // namespace

absl::Duration Dialer::NextSlot() {
  const int grown = std::clamp(attempts_ + 1 - options_.first_slots, 0, kMaxExponent);
  ++attempts_;
  const absl::Duration slot =
      std::min(options_.first * std::pow(kGrowth, grown), options_.longest);
  const double share = static_cast<double>(random_() >> 11) * 0x1.0p-53;  // [0, 1)
  return slot * (1.0 - kJitter * share);
}

}  // namespace syncline
