#include "comm/collective/schedule/schedule.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/base/nearest.h"
#include "comm/base/status.h"
#include "comm/collective/schedule/builder.h"

namespace syncline::collective {
namespace {

constexpr std::array<std::pair<CollectiveOp, std::string_view>, 10> kOps = {{
    {CollectiveOp::kAllReduce, "all_reduce"},
    {CollectiveOp::kReduceScatter, "reduce_scatter"},
    {CollectiveOp::kAllGather, "all_gather"},
    {CollectiveOp::kBroadcast, "broadcast"},
    {CollectiveOp::kReduce, "reduce"},
    {CollectiveOp::kGather, "gather"},
    {CollectiveOp::kScatter, "scatter"},
    {CollectiveOp::kAllToAll, "all_to_all"},
    {CollectiveOp::kBarrier, "barrier"},
    {CollectiveOp::kSendReceive, "send_receive"},
}};
constexpr std::array<std::pair<Algorithm, std::string_view>, 10> kAlgorithms = {{
    {Algorithm::kDirect, "direct"},
    {Algorithm::kRing, "ring"},
    {Algorithm::kDoubling, "doubling"},
    {Algorithm::kHalving, "halving"},
    {Algorithm::kTree, "tree"},
    {Algorithm::kBruck, "bruck"},
    {Algorithm::kHierarchical, "hierarchical"},
    {Algorithm::kDoubleTree, "double_tree"},
    {Algorithm::kTorus, "torus"},
    {Algorithm::kPairwise, "pairwise"},
}};

template <typename Table>
absl::StatusOr<typename Table::value_type::first_type> Parse(const Table& table,
                                                             std::string_view name,
                                                             std::string_view what) {
  std::vector<std::string_view> names;
  for (const auto& [value, its_name] : table) {
    if (its_name == name) return value;
    names.push_back(its_name);
  }
  return absl::InvalidArgumentError(absl::StrCat("no ", std::string(what), " is called '",
                                                 std::string(name), "'",
                                                 DidYouMean(name, names)));
}

absl::Status CheckProblem(const Problem& problem) {
  if (problem.ranks < 1 || problem.rank < 0 || problem.rank >= problem.ranks) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", problem.rank, " of ", problem.ranks,
                     " ranks is out of range: give 0 to ranks - 1"));
  }
  if (problem.root < 0 || problem.root >= problem.ranks || problem.source < 0 ||
      problem.source >= problem.ranks) {
    return absl::InvalidArgumentError(absl::StrCat(
        "root or peer ", problem.root, " is not one of ", problem.ranks, " ranks"));
  }
  if (problem.local < 1 || problem.ranks % problem.local != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(problem.local, " ranks of each host do not make ", problem.ranks));
  }
  const auto ranks = static_cast<size_t>(problem.ranks);
  const bool equal = problem.send_counts.empty() && problem.receive_counts.empty();
  if (!equal &&
      (problem.op != CollectiveOp::kAllToAll || problem.send_counts.size() != ranks ||
       problem.receive_counts.size() != ranks)) {
    return absl::InvalidArgumentError(
        absl::StrCat("counts for ", problem.send_counts.size(), " and from ",
                     problem.receive_counts.size(), " ranks were given to ",
                     std::string(CollectiveName(problem.op)), ", expected ", ranks,
                     " and ", ranks, " for all_to_all, or none"));
  }
  return absl::OkStatus();
}

bool IsExact(const Problem& problem) { return problem.exact && Reduces(problem.op); }

// Whether the algorithm can combine in the order of ranks. REQUIRES: it supports the
// operation.
bool KeepsOrder(Algorithm algorithm, const Problem& problem) {
  switch (algorithm) {
    case Algorithm::kDirect:
      return true;
    case Algorithm::kDoubling:
      return problem.op == CollectiveOp::kAllReduce;
    case Algorithm::kRing:
    case Algorithm::kHierarchical:
      return problem.op == CollectiveOp::kAllReduce && !problem.rounds;
    default:
      return false;
  }
}

std::string WhyUnsupported(const Problem& problem, Algorithm algorithm) {
  if (algorithm == Algorithm::kHierarchical && !IsExact(problem)) {
    return " here: it has all_reduce, among hosts with several ranks each";
  }
  if (algorithm == Algorithm::kTorus && !IsExact(problem)) {
    return " here: it has all_reduce, where the number of ranks is a product of two";
  }
  if (!IsExact(problem) || KeepsOrder(algorithm, problem)) return "";
  return absl::StrCat(
      " in the exact order of ranks",
      problem.rounds
          ? " of BF16 or FP16; of all_reduce, 'doubling' has it, too"
          : "; of all_reduce, 'ring', 'doubling' and 'hierarchical' have it, too");
}

// The schedule of a single rank, which has no peers.
Schedule AloneSchedule(const Problem& problem) {
  ScheduleBuilder builder;
  switch (problem.op) {
    case CollectiveOp::kAllReduce:
    case CollectiveOp::kBroadcast:
    case CollectiveOp::kBarrier:
      break;
    default: {
      const size_t count =
          problem.send_counts.empty() ? problem.count : problem.send_counts[0];
      builder.Copy({Area::kInput, 0, count}, {Area::kOutput, 0, count});
    }
  }
  return builder.Take();
}

}  // namespace

std::string_view CollectiveName(CollectiveOp op) {
  for (const auto& [value, name] : kOps) {
    if (value == op) return name;
  }
  return "unknown";
}

std::string_view AlgorithmName(Algorithm algorithm) {
  for (const auto& [value, name] : kAlgorithms) {
    if (value == algorithm) return name;
  }
  return "unknown";
}

absl::StatusOr<CollectiveOp> ParseCollective(std::string_view name) {
  return Parse(kOps, name, "collective operation");
}

absl::StatusOr<Algorithm> ParseAlgorithm(std::string_view name) {
  return Parse(kAlgorithms, name, "algorithm");
}

bool FollowsClosely(const Step& step, const Step& wait) {
  if (step.action == Action::kFold &&
      std::find(step.parts.begin(), step.parts.end(), wait.target) != step.parts.end() &&
      wait.action != Action::kSend) {
    return true;
  }
  // A send only reads its source; a receive only writes its target.
  const bool reads = step.action != Action::kReceive && step.action != Action::kFold;
  const bool writes = step.action != Action::kSend;
  const bool wait_reads = wait.action != Action::kReceive;
  const bool wait_writes = wait.action != Action::kSend;
  return (reads && wait_writes && step.source == wait.target) ||
         (writes && wait_reads && step.target == wait.source) ||
         (writes && wait_writes && step.target == wait.target);
}

bool Reduces(CollectiveOp op) {
  return op == CollectiveOp::kAllReduce || op == CollectiveOp::kReduceScatter ||
         op == CollectiveOp::kReduce;
}

bool Supports(Algorithm algorithm, const Problem& problem) {
  const CollectiveOp op = problem.op;
  if (IsExact(problem) && !KeepsOrder(algorithm, problem)) return false;
  switch (algorithm) {
    case Algorithm::kDirect:
      return true;
    case Algorithm::kRing:
      return op == CollectiveOp::kAllReduce || op == CollectiveOp::kReduceScatter ||
             op == CollectiveOp::kAllGather || op == CollectiveOp::kBroadcast;
    case Algorithm::kDoubling:
      return op == CollectiveOp::kAllReduce || op == CollectiveOp::kAllGather;
    case Algorithm::kHalving:
      return op == CollectiveOp::kAllReduce;
    case Algorithm::kTree:
      return op == CollectiveOp::kAllReduce || op == CollectiveOp::kBroadcast ||
             op == CollectiveOp::kReduce || op == CollectiveOp::kGather ||
             op == CollectiveOp::kScatter;
    case Algorithm::kBruck:
      return op == CollectiveOp::kAllToAll && problem.send_counts.empty();
    case Algorithm::kPairwise:
      return op == CollectiveOp::kAllToAll;
    case Algorithm::kHierarchical:
      return op == CollectiveOp::kAllReduce && problem.local > 1 &&
             problem.ranks > problem.local;
    case Algorithm::kDoubleTree:
      return op == CollectiveOp::kAllReduce;
    case Algorithm::kTorus:
      return op == CollectiveOp::kAllReduce && TorusRows(problem.ranks) > 1;
  }
  return false;
}

absl::StatusOr<Schedule> MakeSchedule(const Problem& problem, Algorithm algorithm) {
  SYNCLINE_RETURN_IF_ERROR(CheckProblem(problem));
  if (!Supports(algorithm, problem)) {
    return absl::UnimplementedError(absl::StrCat(
        "algorithm ", std::string(AlgorithmName(algorithm)), " has no ",
        std::string(CollectiveName(problem.op)), WhyUnsupported(problem, algorithm),
        "; 'direct' has all operations"));
  }
  if (problem.ranks == 1) return AloneSchedule(problem);
  switch (algorithm) {
    case Algorithm::kDirect:
      return DirectSchedule(problem);
    case Algorithm::kRing:
      return IsExact(problem) ? ExactRingSchedule(problem) : RingSchedule(problem);
    case Algorithm::kDoubling:
      return IsExact(problem) ? ExactDoublingSchedule(problem)
                              : DoublingSchedule(problem);
    case Algorithm::kHalving:
      return HalvingSchedule(problem);
    case Algorithm::kTree:
      return TreeSchedule(problem);
    case Algorithm::kBruck:
      return BruckSchedule(problem);
    case Algorithm::kPairwise:
      return PairwiseSchedule(problem);
    case Algorithm::kHierarchical:
      return IsExact(problem) ? ExactHierarchicalSchedule(problem)
                              : HierarchicalSchedule(problem);
    case Algorithm::kDoubleTree:
      return DoubleTreeSchedule(problem);
    case Algorithm::kTorus:
      return TorusSchedule(problem);
  }
  return absl::InternalError("an algorithm without a schedule");
}

Range EvenSlice(Area area, size_t count, int parts, int index) {
  const auto n = static_cast<size_t>(parts);
  const auto i = static_cast<size_t>(index);
  const size_t longer = count % n;
  return {area, i * (count / n) + std::min(i, longer), count / n + (i < longer ? 1 : 0)};
}

}  // namespace syncline::collective
