#include "server/coordinator/membership.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace syncline {
namespace {

std::string ReasonToDrop(absl::Duration now, const Lease& lease,
                         const Timeouts& timeouts) {
  if (!lease.connected) {
    if (now - lease.disconnected_at < timeouts.reconnect_grace) return "";
    return "its connection broke and was not restored";
  }
  if (now - lease.heard_at >= timeouts.lease) {
    return absl::StrCat("no heartbeat for ", absl::FormatDuration(timeouts.lease));
  }
  return "";
}

}  // namespace

std::vector<Drop> ComputeDrops(absl::Duration now, const std::vector<Lease>& leases,
                               const Timeouts& timeouts) {
  std::vector<Drop> drops;
  for (const Lease& lease : leases) {
    std::string reason = ReasonToDrop(now, lease, timeouts);
    if (!reason.empty()) drops.push_back({lease.rank, std::move(reason)});
  }
  return drops;
}

}  // namespace syncline
