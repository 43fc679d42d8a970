#include "comm/base/repeats.h"

#include <bit>

namespace syncline {

uint64_t Repeats::ToSay(const std::string& kind, const std::string& group) {
  absl::MutexLock lock(&mutex_);
  const bool has_room = times_.contains(kind) || times_.size() < kMaxKinds;
  const uint64_t times = has_room ? ++times_[kind] : ++groups_[group];
  return std::has_single_bit(times) ? times : 0;
}

}  // namespace syncline
