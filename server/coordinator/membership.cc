#include "server/coordinator/membership.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace syncline {
namespace {

std::string ReasonToDrop(absl::Duration now, const Lease& lease, bool others_wait,
                         const Timeouts& timeouts) {
  if (!lease.connected) {
    if (now - lease.disconnected_at < timeouts.failure_timeout / 4) return "";
    return "its connection broke and did not come back";
  }
  if (now - lease.heard_at >= timeouts.lease) {
    return absl::StrCat("no heartbeat for ", absl::FormatDuration(timeouts.lease));
  }
  if (others_wait && !lease.waiting &&
      now - lease.progressed_at >= timeouts.no_progress) {
    return absl::StrCat("no progress for ", absl::FormatDuration(timeouts.no_progress),
                        " while others wait for it");
  }
  return "";
}

}  // namespace

std::vector<Drop> ComputeDrops(absl::Duration now, const std::vector<Lease>& leases,
                               const Timeouts& timeouts) {
  const bool someone_waits =
      std::any_of(leases.begin(), leases.end(),
                  [](const Lease& lease) { return lease.connected && lease.waiting; });
  std::vector<Drop> drops;
  for (const Lease& lease : leases) {
    std::string reason = ReasonToDrop(now, lease, someone_waits, timeouts);
    if (!reason.empty()) drops.push_back({lease.rank, std::move(reason)});
  }
  return drops;
}

}  // namespace syncline
