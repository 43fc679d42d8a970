#include "comm/collective/group/wire.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace syncline::collective {

absl::Status ReportedBy(int reporter, int self, absl::Status status) {
  const std::optional<int> rank = FailedRank(status);
  absl::Status told(
      status.code(),
      rank == self ? absl::StrCat("rank ", reporter,
                                  " reports about this rank: ", status.message())
                   : absl::StrCat(status.message(), " (found by rank ", reporter, ")"));
  if (rank.has_value()) SetFailedRank(told, *rank);
  return told;
}

absl::Status CompareEntered(int rank, const CallHeader& entered,
                            const CallHeader& header) {
  // Counts of an all-to-all may differ between ranks; the lanes compare them.
  const bool is_all_to_all =
      static_cast<CollectiveOp>(header.op) == CollectiveOp::kAllToAll;
  const bool may_differ = is_all_to_all && entered.op == header.op;
  if (entered.sequence != header.sequence || may_differ || entered == header) {
    return absl::OkStatus();
  }
  return Mismatch(rank, entered, header);
}

bool Liveness::Look(uint64_t number, absl::Duration now) {
  // If this was not called for a long time, this rank itself may have been stopped. So
  // earlier observations count only if this rank has observed all the time.
  const bool fresh = now - looked_ > failure_timeout_ / kBeatsPerTimeout;
  looked_ = now;
  if (fresh || number != number_) {
    number_ = number;
    since_ = now;
    return true;
  }
  return now - since_ < failure_timeout_;
}

}  // namespace syncline::collective
