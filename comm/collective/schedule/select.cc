#include "comm/collective/schedule/select.h"

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "comm/collective/schedule/builder.h"

namespace syncline::collective {
namespace {

// With more senders to one receiver at once, the buffers of switches overflow: TCP would
// lose packets and wait.
constexpr int kMaxSendersBetweenHosts = 8;

// These save steps at a network's latency. They were not measured within a host.
bool IsForHosts(Algorithm algorithm) {
  return algorithm == Algorithm::kDoubleTree || algorithm == Algorithm::kTorus;
}

// Returns the bytes of the whole operation, which nccl-tests call the size.
double TotalBytes(const Problem& problem, size_t element_bytes) {
  double bytes = static_cast<double>(problem.count) * static_cast<double>(element_bytes);
  switch (problem.op) {
    case CollectiveOp::kReduceScatter:
    case CollectiveOp::kAllGather:
    case CollectiveOp::kGather:
    case CollectiveOp::kScatter:
    case CollectiveOp::kAllToAll:
      bytes *= problem.ranks;
      break;
    default:
      break;
  }
  return bytes;
}

std::string FormatEstimate(double seconds) {
  if (seconds < 1e-3) return absl::StrFormat("%.3g us", seconds * 1e6);
  if (seconds < 1) return absl::StrFormat("%.3g ms", seconds * 1e3);
  return absl::StrFormat("%.3g s", seconds);
}

int CeilLog2(int ranks) {
  return static_cast<int>(std::bit_width(static_cast<unsigned>(ranks - 1)));
}

Traffic Direct(const Problem& problem, double n) {
  const double p = problem.ranks;
  const double share = n * (p - 1) / p;
  switch (problem.op) {
    case CollectiveOp::kAllReduce:
      return {2, 2 * (p - 1), 2 * share, share};
    case CollectiveOp::kReduceScatter:
      return {1, p - 1, share, share};
    case CollectiveOp::kBroadcast:
      return {1, p - 1, n * (p - 1), 0};
    case CollectiveOp::kReduce:
      return {1, p - 1, n * (p - 1), n * (p - 1)};
    case CollectiveOp::kBarrier:
      return {CeilLog2(problem.ranks), static_cast<double>(CeilLog2(problem.ranks)), 0,
              0};
    case CollectiveOp::kSendReceive:
      return {1, 1, n, 0};
    default:
      return {1, p - 1, share, 0};
  }
}

Traffic Ring(const Problem& problem, double n) {
  const double p = problem.ranks;
  const double share = n * (p - 1) / p;
  switch (problem.op) {
    case CollectiveOp::kAllReduce:
      return {2 * (problem.ranks - 1), 2 * (p - 1), 2 * share, share};
    case CollectiveOp::kReduceScatter:
      return {problem.ranks - 1, p - 1, share, share};
    case CollectiveOp::kAllGather:
      return {problem.ranks - 1, p - 1, share, 0};
    default:
      return {problem.ranks - 1, 1, n, 0};
  }
}

// Returns how often a member in the middle of a chain carries what goes up and down it.
double ChainTimes(int members) { return members > 2 ? 2 : 1; }

// All-reduces in the order of ranks (exact.cc).
Traffic Exact(const Problem& problem, Algorithm algorithm, double n) {
  const double p = problem.ranks;
  if (algorithm == Algorithm::kDoubling) {
    return {CeilLog2(problem.ranks), p - 1, n * (p - 1), n * (p - 1)};
  }
  const int local = algorithm == Algorithm::kHierarchical ? problem.local : 1;
  const int members = problem.ranks / local;
  const double slice = n / local;
  const double handed = 2.0 * (local - 1);
  const double times = ChainTimes(members);
  return {.rounds = (local > 1 ? 2 : 0) + 2 * (members - 1),
          .messages = handed + times,
          .bytes = 2 * (n - slice) + times * slice,
          .reduced_bytes = n,
          .host_rounds = local > 1 ? 2 : 0,
          .host_messages = handed};
}

// Halving and doubling of the all-reduce, with the hand-over of ranks that stand aside.
Traffic Powers(const Problem& problem, Algorithm algorithm, double n) {
  const auto size =
      static_cast<int>(std::bit_floor(static_cast<unsigned>(problem.ranks)));
  const int rounds = CeilLog2(size);
  const double share = n * (size - 1) / size;
  Traffic traffic = {rounds, static_cast<double>(rounds), n * rounds, n * rounds};
  if (algorithm == Algorithm::kHalving) {
    traffic = {2 * rounds, 2.0 * rounds, 2 * share, share};
  }
  if (size != problem.ranks) {
    traffic.rounds += 2;
    traffic.messages += 1;
    traffic.bytes += n;
    traffic.reduced_bytes += n;
  }
  return traffic;
}

Traffic Tree(const Problem& problem, double n) {
  const int rounds = CeilLog2(problem.ranks);
  const double p = problem.ranks;
  switch (problem.op) {
    case CollectiveOp::kAllReduce:
      return {2 * rounds, 1.0 * rounds, n * rounds, n * rounds};
    case CollectiveOp::kReduce:
      return {rounds, 1.0 * rounds, n * rounds, n * rounds};
    case CollectiveOp::kBroadcast:
      return {rounds, 1.0 * rounds, n * rounds, 0};
    default:
      return {rounds, p - 1, n * (p - 1) / p, 0};
  }
}

// An inner rank of one tree (with half the values) that has two children is a leaf of the
// other tree. With at most three ranks there is no such rank.
Traffic DoubleTree(const Problem& problem, double n) {
  const double halves = std::min(problem.ranks - 1, 3) + 1;
  const int rounds = 2 * CeilLog2(problem.ranks);
  const double reduced = std::min(problem.ranks - 1, 2);
  return {rounds, halves, n / 2 * halves, n / 2 * reduced};
}

Traffic Torus(const Problem& problem, double n) {
  const int rows = TorusRows(problem.ranks);
  const int rounds = 2 * (rows - 1 + problem.ranks / rows - 1);
  const double share = n * (problem.ranks - 1) / problem.ranks;
  return {rounds, static_cast<double>(rounds), 2 * share, share};
}

Traffic Bruck(const Problem& problem, double n) {
  double blocks = 0;
  for (int i = 1; i < problem.ranks; ++i) {
    blocks += std::popcount(static_cast<unsigned>(i));
  }
  return {CeilLog2(problem.ranks), blocks, n / problem.ranks * blocks, 0};
}

// With L ranks per host: 2(L - 1)/L of the bytes within the host, and a ring for each
// rank's slice.
Traffic Hierarchical(const Problem& problem, double n) {
  const double local = problem.local;
  const int hosts = problem.ranks / problem.local;
  const double slice = n / local;
  const double within = n - slice;
  const double ring = slice * (hosts - 1) / hosts;
  const double handed = 2 * (local - 1) * hosts;
  return {.rounds = 2 + 2 * (hosts - 1),
          .messages = handed + 2 * (hosts - 1),
          .bytes = 2 * within + 2 * ring,
          .reduced_bytes = within + ring,
          .host_rounds = 2,
          .host_messages = handed,
          .cable_bytes = 2 * ring * local};
}

// Returns the bytes on a host's cable if one rank sends `bytes`, for algorithms that
// treat ranks alike.
double CableBytes(const Problem& problem, Algorithm algorithm, double bytes) {
  if (problem.local == 1 || algorithm == Algorithm::kRing) return bytes;
  const double all = problem.local * bytes;
  if (algorithm != Algorithm::kDirect) return all;  // an upper bound
  return all * (problem.ranks - problem.local) / (problem.ranks - 1);
}

Traffic FlatTraffic(const Problem& problem, Algorithm algorithm, double n) {
  switch (algorithm) {
    case Algorithm::kDirect:
      return Direct(problem, n);
    case Algorithm::kRing:
      return Ring(problem, n);
    case Algorithm::kDoubling:
      if (problem.op == CollectiveOp::kAllReduce) return Powers(problem, algorithm, n);
      return {CeilLog2(problem.ranks), problem.ranks - 1.0,
              n * (problem.ranks - 1) / problem.ranks, 0};
    case Algorithm::kHalving:
      return Powers(problem, algorithm, n);
    case Algorithm::kTree:
      return Tree(problem, n);
    case Algorithm::kBruck:
      return Bruck(problem, n);
    case Algorithm::kPairwise:
      return {problem.ranks - 1, problem.ranks - 1.0,
              n * (problem.ranks - 1) / problem.ranks, 0};
    case Algorithm::kDoubleTree:
      return DoubleTree(problem, n);
    case Algorithm::kTorus:
      return Torus(problem, n);
    case Algorithm::kHierarchical:
      break;  // not flat
  }
  return {};
}

}  // namespace

Traffic TrafficOf(const Problem& problem, Algorithm algorithm, size_t element_bytes) {
  if (problem.ranks == 1) return {};
  const double n = TotalBytes(problem, element_bytes);
  if (problem.exact && Reduces(problem.op) && algorithm != Algorithm::kDirect) {
    Traffic traffic = Exact(problem, algorithm, n);
    traffic.cable_bytes = algorithm == Algorithm::kDoubling
                              ? CableBytes(problem, algorithm, traffic.bytes)
                              : n * ChainTimes(problem.ranks / problem.local);
    return traffic;
  }
  if (algorithm == Algorithm::kHierarchical) return Hierarchical(problem, n);
  Traffic traffic = FlatTraffic(problem, algorithm, n);
  traffic.cable_bytes = CableBytes(problem, algorithm, traffic.bytes);
  return traffic;
}

double EstimateSeconds(const Traffic& traffic, const Topology& topology) {
  const Costs& costs = topology.costs;
  const double reducing = traffic.reduced_bytes * costs.per_reduced_byte;
  if (topology.hosts == 1) {
    return traffic.rounds * costs.host.latency +
           traffic.messages * costs.host.per_message +
           traffic.bytes * costs.host.per_byte + reducing;
  }
  return traffic.host_rounds * costs.host.latency +
         traffic.host_messages * costs.host.per_message +
         (traffic.rounds - traffic.host_rounds) * costs.network.latency +
         (traffic.messages - traffic.host_messages) * costs.network.per_message +
         traffic.cable_bytes * costs.network.per_byte + reducing;
}

Choice Select(const Problem& problem, size_t element_bytes, const Topology& topology) {
  std::vector<std::pair<double, Algorithm>> found;
  for (const Algorithm algorithm : kAllAlgorithms) {
    if (!Supports(algorithm, problem)) continue;
    if (topology.hosts == 1 && IsForHosts(algorithm)) continue;
    const Traffic traffic = TrafficOf(problem, algorithm, element_bytes);
    found.emplace_back(EstimateSeconds(traffic, topology), algorithm);
  }
  // The direct algorithm is first in the list, and the only one for some operations.
  // Other algorithms that round once in the order of ranks carry p times the bytes.
  const bool has_others = found.size() > 1 && !(problem.exact && problem.rounds);
  if (has_others && topology.hosts > 1 && problem.ranks > kMaxSendersBetweenHosts) {
    found.erase(found.begin());
  }
  std::stable_sort(found.begin(), found.end(), [](const auto& one, const auto& other) {
    return one.first < other.first;
  });
  Choice choice = {.algorithm = found[0].second, .seconds = found[0].first, .reason = ""};
  for (const auto& [seconds, algorithm] : found) {
    absl::StrAppend(&choice.reason, choice.reason.empty() ? "" : ", ",
                    std::string(AlgorithmName(algorithm)), ": ", FormatEstimate(seconds));
  }
  return choice;
}

}  // namespace syncline::collective
