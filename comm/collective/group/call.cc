#include "comm/collective/group/call.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace syncline::collective {
namespace {

constexpr char kRankPayload[] = "syncline/rank";

size_t Total(const std::vector<size_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), size_t{0});
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
    if (header.label[0] != 0) {
      const auto end = std::find(header.label.begin(), header.label.end(), '\0');
      absl::StrAppend(&out, " (", std::string(header.label.begin(), end), ")");
    }
  }
  if (header.exact != 0) absl::StrAppend(&out, " in the exact order of ranks");
  if (header.algorithm == kBoardAlgorithm) {
    absl::StrAppend(&out, " through shared memory");
  } else if (header.algorithm == kNcclAlgorithm) {
    absl::StrAppend(&out, " over NCCL");
  } else {
    const auto algorithm = static_cast<Algorithm>(header.algorithm);
    absl::StrAppend(&out, " by ", std::string(AlgorithmName(algorithm)));
  }
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
      "and types, and ask for the same algorithm and exact_order or for none"));
  SetFailedRank(status, rank);
  return status;
}

absl::Status CheckMemory(const Call& call, int rank) {
  const CollectiveOp op = call.op;
  const bool root = call.root == rank;
  const bool in_place = op == CollectiveOp::kAllReduce || op == CollectiveOp::kBroadcast;
  bool reads = !in_place;
  bool writes = true;
  if (op == CollectiveOp::kScatter) reads = root;
  if (op == CollectiveOp::kReduce || op == CollectiveOp::kGather) writes = root;
  if (op == CollectiveOp::kSendReceive) {
    reads = call.source == rank;
    writes = root;
  }
  const size_t given = op == CollectiveOp::kBarrier ? 0 : call.count;
  const size_t sent = call.send_counts.empty() ? given : Total(call.send_counts);
  const size_t received =
      call.receive_counts.empty() ? given : Total(call.receive_counts);
  const bool lacks_input = reads && sent > 0 && call.input == nullptr;
  const bool lacks_output = writes && received > 0 && call.output == nullptr;
  if (!lacks_input && !lacks_output) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(std::string(CollectiveName(op)), " of ", lacks_input ? sent : received,
                   " elements got no ", lacks_input ? "input" : "output"));
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
