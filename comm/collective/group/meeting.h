// How the members of a group find each other: each leaves a card in the store that says
// where its shared memory is, and opens that of all others on its host. Where there are
// several hosts, each leaves a second card that says where it listens, the first rank a key
// that only members of the group get, and all connect to those on other hosts.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/collective/group/wire.h"

namespace syncline::collective {

struct GroupOptions;

// A rank that did not run for less time than that may only have waited for a core.
inline constexpr absl::Duration kLeastFailureTimeout = absl::Milliseconds(100);

struct Meeting {
  std::unique_ptr<Wire> wire;
  std::vector<int> host_of;  // by rank: number of its host, from 0, in order of ranks

  int hosts() const;
  int RanksBeside(int rank) const;  // on its host, with it
  int RanksOfEachHost() const;      // Problem::local
};

// Blocks until all members have opened each other's memory, or are connected.
// InvalidArgument for options that make no sense; FailedPrecondition where the store holds
// the card of an earlier group; Unavailable where a rank cannot be reached;
// DeadlineExceeded after start_timeout.
absl::StatusOr<Meeting> Meet(const GroupOptions& options);

}  // namespace syncline::collective
