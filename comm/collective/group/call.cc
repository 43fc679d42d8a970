#include "comm/collective/group/call.h"

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace syncline::collective {
namespace {

constexpr char kRankPayload[] = "syncline/rank";

bool Reduces(CollectiveOp op) {
  return op == CollectiveOp::kAllReduce || op == CollectiveOp::kReduceScatter ||
         op == CollectiveOp::kReduce;
}

}  // namespace

std::string Describe(const CallHeader& header) {
  const auto op = static_cast<CollectiveOp>(header.op);
  std::string out(CollectiveName(op));
  if (Reduces(op)) {
    absl::StrAppend(&out, " (",
                    std::string(ReduceName(static_cast<ReduceOp>(header.reduce))), ")");
  }
  absl::StrAppend(&out, " number ", header.sequence);
  if (op != CollectiveOp::kBarrier) {
    absl::StrAppend(&out, " of ", header.count, " ",
                    std::string(ElementName(static_cast<ElementType>(header.type))));
  }
  absl::StrAppend(
      &out, " by ",
      header.algorithm == kBoardAlgorithm
          ? "board"
          : std::string(AlgorithmName(static_cast<Algorithm>(header.algorithm))));
  if (op == CollectiveOp::kSendReceive) {
    absl::StrAppend(&out, " from rank ", header.source, " to ", header.root, " with tag ",
                    header.tag);
  } else if (header.root != 0) {
    absl::StrAppend(&out, " with root ", header.root);
  }
  return out;
}

absl::Status Mismatch(int rank, const CallHeader& its, const CallHeader& own) {
  absl::Status status = absl::FailedPreconditionError(absl::StrCat(
      "rank ", rank, " is in ", Describe(its), ", but this rank is in ", Describe(own),
      ": all ranks must call the same operations, in the same order, with the same sizes "
      "and types, and ask for the same algorithm or for none"));
  SetFailedRank(status, rank);
  return status;
}

void SetFailedRank(absl::Status& status, int rank) {
  status.SetPayload(kRankPayload, absl::Cord(absl::StrCat(rank)));
}

std::optional<int> FailedRank(const absl::Status& status) {
  const auto payload = status.GetPayload(kRankPayload);
  int rank = 0;
  if (!payload.has_value() || !absl::SimpleAtoi(std::string(*payload), &rank)) return {};
  return rank;
}

}  // namespace syncline::collective
