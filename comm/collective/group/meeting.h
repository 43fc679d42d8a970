// How the members of a group find each other: each leaves a card in the store that says
// where its shared memory is, opens that of all others, and checks that they opened its own.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/collective/group/shared_wire.h"

namespace syncline::collective {

struct GroupOptions;

// A rank that did not run for less time than that may only have waited for a core.
inline constexpr absl::Duration kLeastFailureTimeout = absl::Milliseconds(100);

// Blocks until all members have opened each other's memory. InvalidArgument for options that
// make no sense; Unimplemented where the members are not all on one host; FailedPrecondition
// where the store holds the card of an earlier group; DeadlineExceeded after start_timeout.
absl::StatusOr<std::unique_ptr<SharedWire>> Meet(const GroupOptions& options);

}  // namespace syncline::collective
