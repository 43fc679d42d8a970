#include "server/coordinator/epoch_change.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace syncline {

bool EpochChange::Prepare(uint32_t server, uint64_t servers_next_step) {
  if (unprepared.erase(server) == 0) return false;
  next_step = std::max(next_step, servers_next_step);
  return true;
}

const std::set<uint32_t>& EpochChange::unanswered() const {
  return IsPrepared() ? uncommitted : unprepared;
}

std::string EpochChange::Question() const {
  return absl::StrCat(IsPrepared() ? "commit" : "prepare", " epoch ", epoch);
}

void EpochChange::Lose(uint32_t server) {
  (IsPrepared() ? uncommitted : unprepared).insert(server);
}

void EpochChange::Replace(uint32_t server, uint32_t successor) {
  for (std::set<uint32_t>* servers : {&unprepared, &uncommitted}) {
    if (servers->erase(server) > 0) servers->insert(successor);
  }
}

}  // namespace syncline
