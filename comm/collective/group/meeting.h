// Connects the members of a group through a store. Each member publishes a card with the
// address of its shared memory, and opens the memory of the other members on its host.
// With several hosts each also publishes the address at which it listens, rank 0
// publishes a secret key for the group's members, and each connects to the members on
// other hosts.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/collective/group/wire.h"

namespace syncline::collective {

struct GroupOptions;

// Lower limit: a rank that did not run for a shorter time may only have waited for a
// core.
inline constexpr absl::Duration kLeastFailureTimeout = absl::Milliseconds(100);

struct Meeting {
  std::unique_ptr<Wire> wire;
  std::vector<int> host_of;  // by rank: index of its host, from 0, in order of ranks

  int hosts() const;
  int RanksBeside(int rank) const;  // on the same host, including `rank`
  int RanksOfEachHost() const;      // Problem::local
};

// Blocks until all members have opened each other's memory, or are connected. Fails with
// InvalidArgument for invalid options, FailedPrecondition if the store has the card of an
// earlier group, Unavailable if a rank cannot be reached, and DeadlineExceeded after
// start_timeout.
absl::StatusOr<Meeting> Meet(const GroupOptions& options);

}  // namespace syncline::collective
