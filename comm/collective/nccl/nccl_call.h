// Translates a group's call into NCCL's functions, and checks whether NCCL supports it.
#pragma once

#include "absl/status/status.h"
#include "comm/collective/group/call.h"
#include "comm/collective/nccl/nccl_library.h"

namespace syncline::collective {

struct NcclRank {
  int rank = 0;
  int ranks = 1;
};

// Fails with Unimplemented if NCCL lacks the reduction, and with InvalidArgument for an
// invalid root, count or address. NCCL decides how sums of BF16 and FP16 are rounded.
absl::Status CheckNcclCall(const Call& call, const NcclRank& place);

// Where a call is launched.
struct NcclTarget {
  const NcclLibrary& nccl;
  void* comm;
  void* stream;
  NcclRank place;
};

// Enqueues the call on the stream. Returns NCCL's result, which may be kNcclInProgress. A
// barrier reduces the byte at `call.output`. REQUIRES: CheckNcclCall returned OK; one
// thread at a time.
int LaunchNcclCall(const NcclTarget& target, const Call& call);

}  // namespace syncline::collective
