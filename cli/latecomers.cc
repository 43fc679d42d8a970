#include "cli/latecomers.h"

namespace syncline {

std::vector<int> Latecomers::BeginAnew() {
  std::vector<int> ranks(waiting_.begin(), waiting_.end());
  anew_.merge(waiting_);
  waiting_.clear();
  return ranks;
}

}  // namespace syncline
