#include "cli/latecomers.h"

#include <algorithm>

namespace syncline {

bool Latecomers::BeginsAnew(int rank, const std::vector<int>& working) {
  const uint64_t own = started_[rank];
  const bool one_began_since = std::ranges::any_of(working, [&](int other) {
    const auto start = started_.find(other);
    return other != rank && start != started_.end() && start->second > own;
  });
  (one_began_since ? anew_ : waiting_).insert(rank);
  return one_began_since;
}

std::vector<int> Latecomers::TakeWaiting() {
  std::vector<int> ranks(waiting_.begin(), waiting_.end());
  anew_.merge(waiting_);
  waiting_.clear();
  return ranks;
}

}  // namespace syncline
