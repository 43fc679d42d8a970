#include "server/coordinator/spread.h"

#include <map>
#include <tuple>

namespace syncline {
namespace {

constexpr size_t kLeastDifference = 2;

bool HasRoom(const ServerMemory& memory, uint64_t bytes) {
  return memory.budget_bytes == 0 || memory.placed_bytes + bytes <= memory.budget_bytes;
}

}  // namespace

std::optional<ShareMove> NextMove(const std::vector<Share>& shares,
                                  const std::vector<ShareHost>& hosts) {
  std::map<std::string, size_t> served;
  for (const Share& share : shares) ++served[share.host];
  std::optional<ShareMove> best;
  // In this order: the copy exists already, the difference that the move reduces, and how
  // few bytes the other server has in use.
  using Merit = std::tuple<bool, size_t, uint64_t>;
  Merit most = {};
  for (const ShareHost& host : hosts) {
    const auto found = served.find(host.name);
    const size_t has = found == served.end() ? 0 : found->second;
    for (const Share& share : shares) {
      const size_t others = served.at(share.host);
      if (others < has + kLeastDifference || share.barred.contains(host.name)) continue;
      const bool has_copy = share.holder == host.name;
      const bool may_copy =
          share.may_copy && host.is_steady && HasRoom(host.memory, share.bytes);
      if (!has_copy && !may_copy) continue;
      const Merit merit = {has_copy, others - has, ~host.memory.placed_bytes};
      if (best && merit <= most) continue;
      most = merit;
      best = {.place = share.place, .to = host.name, .has_copy = has_copy};
    }
  }
  return best;
}

}  // namespace syncline
