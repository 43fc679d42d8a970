#include "server/coordinator/stops.h"

namespace syncline {

std::vector<uint32_t> Stops::ranks() const {
  std::vector<uint32_t> ranks;
  ranks.reserve(stops_.size());
  for (const auto& [rank, stop] : stops_) ranks.push_back(rank);
  return ranks;
}

void Stops::Add(uint32_t rank, uint32_t incarnation, absl::Duration until) {
  stops_[rank] = {.incarnation = incarnation, .until = until, .by = last_by_};
}

}  // namespace syncline
