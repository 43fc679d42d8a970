#include "server/coordinator/homecoming.h"

#include <algorithm>

namespace syncline {
namespace {

uint64_t StepsOf(const std::map<uint32_t, uint64_t>& steps, uint32_t server) {
  const auto found = steps.find(server);
  return found == steps.end() ? 0 : found->second;
}

}  // namespace

bool Homecoming::Take(uint32_t server, const HeldJob& held) {
  if (servers.erase(server) == 0) return false;
  prepared = std::max(prepared, held.prepared);
  decided[server] = held.decided ? held.decided->step + 1 : 0;
  closed[server] = held.closed ? held.closed->step + 1 : 0;
  return true;
}

void Homecoming::Replace(uint32_t server, uint32_t successor) {
  if (servers.erase(server) > 0) servers.insert(successor);
}

bool Homecoming::LacksDecision(uint32_t server, uint64_t below) const {
  return StepsOf(decided, server) < below;
}

bool Homecoming::LacksClosed(uint32_t server, uint64_t step) const {
  return StepsOf(closed, server) <= step;
}

}  // namespace syncline
