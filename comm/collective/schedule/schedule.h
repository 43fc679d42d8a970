// Schedules: the actions of one rank in a collective operation, as data.
//
// An algorithm is a pure function from a problem (operation, rank, ranks, elements) to a
// list of steps: send, receive, reduce or copy a range, each with the steps that it waits
// for. The same lists run in the engine (comm/collective/group) and in the checker, which
// tests them for every number of ranks; the cost model counts them.
//
// Between two ranks messages flow in the order of the steps, in each direction. A step
// processes its range from front to back. If a step waits for another one with exactly
// the same range, it may process each element as soon as the other one has. So a receive
// followed by a send forms a pipeline without being cut into chunks.
//
//   const Problem problem = {.op = CollectiveOp::kAllReduce, .rank = 1, .ranks = 4,
//                            .count = 1000};
//   auto schedule = MakeSchedule(problem, Algorithm::kRing);
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace syncline::collective {

enum class CollectiveOp : uint8_t {
  // output (count): this rank's values; afterwards those of all ranks, reduced
  kAllReduce,
  kReduceScatter,  // input (ranks x count) to output (count): slice `rank`, reduced
  kAllGather,      // input (count) to output (ranks x count)
  kBroadcast,      // output (count): the root's
  kReduce,         // input (count) to the root's output (count)
  kGather,         // input (count) to the root's output (ranks x count)
  kScatter,        // the root's input (ranks x count) to output (count)
  kAllToAll,       // input (a slice for each rank) to output (a slice from each rank)
  kBarrier,        // no data
  kSendReceive,    // input to the rank `root`; or, where rank == root, from `source`
};

enum class Algorithm : uint8_t {
  kDirect,  // each rank communicates at once with all that it needs
  kRing,    // neighbours only; a broadcast is a chain
  // Whole vectors, with partners at distance 1, 2, 4, ...; all-gather as Bruck's.
  kDoubling,
  kHalving,       // recursive halving, then recursive doubling (Rabenseifner)
  kTree,          // binomial
  kBruck,         // all-to-all in log2(ranks) rounds
  kHierarchical,  // within hosts, then a ring of hosts for each slice, then within hosts
  kDoubleTree,    // two binary trees, each for half of the values
  kTorus,         // rings within the rows of a grid, then its columns, then its rows
  kPairwise,      // all-to-all with one partner at a time
};

inline constexpr Algorithm kAllAlgorithms[] = {
    Algorithm::kDirect,       Algorithm::kRing,       Algorithm::kDoubling,
    Algorithm::kHalving,      Algorithm::kTree,       Algorithm::kBruck,
    Algorithm::kHierarchical, Algorithm::kDoubleTree, Algorithm::kTorus,
    Algorithm::kPairwise};

// Return names such as "all_reduce" and "ring".
std::string_view CollectiveName(CollectiveOp op);
std::string_view AlgorithmName(Algorithm algorithm);
// Parse a name. InvalidArgument suggests the nearest one.
absl::StatusOr<CollectiveOp> ParseCollective(std::string_view name);
absl::StatusOr<Algorithm> ParseAlgorithm(std::string_view name);

struct Problem {
  CollectiveOp op = CollectiveOp::kAllReduce;
  int rank = 0;
  int ranks = 1;
  int root = 0;
  int source = 0;    // kSendReceive
  size_t count = 0;  // elements; see CollectiveOp
  // Ranks per host, with consecutive numbers; 1 also if hosts have different numbers of
  // ranks.
  int local = 1;
  // Number of elements that the direct all-reduce processes at a time, so that reduced
  // values are passed on while they are in the cache. 0: all at once.
  size_t segment = 0;
  // Reductions combine values in the order of ranks, from left to right, and round once.
  // All algorithms that support this give the same bits.
  bool exact = false;
  // With `exact`: partial results would be rounded in transit (BF16, FP16), so that only
  // the ranks' own values may be sent.
  bool rounds = false;
  // kAllToAll: number of elements to and from each rank. Empty: `count` each.
  std::vector<size_t> send_counts = {};
  std::vector<size_t> receive_counts = {};
};

enum class Area : uint8_t { kInput, kOutput, kScratch };

struct Range {
  Area area = Area::kOutput;
  size_t first = 0;  // first element
  size_t count = 0;

  bool operator==(const Range& other) const {
    return area == other.area && first == other.first && count == other.count;
  }
  size_t end() const { return first + count; }
};

enum class Action : uint8_t {
  kCopy,     // target = source
  kSend,     // send source to the peer
  kReceive,  // target = data from the peer
  kReduce,   // target = source combined with the data from each peer
  kFold,     // target = parts, combined from left to right
};

struct Step {
  Action action = Action::kCopy;
  Range target = {};
  Range source = {};
  std::vector<int> peers = {};
  std::vector<uint32_t> waits = {};  // indices of earlier steps
  std::vector<Range> parts = {};     // kFold: each as long as the target
  uint32_t turn = 0;  // kReduce: number of peers combined before the source
  // kReduce, kFold: completes the target; averages are divided in this step.
  bool completes = false;

  size_t count() const { return action == Action::kSend ? source.count : target.count; }
};

struct Schedule {
  std::vector<Step> steps;
  size_t scratch = 0;  // elements
};

// Whether `step` may process element i as soon as `wait` has processed it.
bool FollowsClosely(const Step& step, const Step& wait);

// Fails with InvalidArgument for an invalid problem, and with Unimplemented if the
// algorithm does not solve it.
absl::StatusOr<Schedule> MakeSchedule(const Problem& problem, Algorithm algorithm);

bool Supports(Algorithm algorithm, const Problem& problem);

bool Reduces(CollectiveOp op);

// Returns slice `index` when `count` elements are divided into `parts`. If that leaves a
// remainder, the first slices are longer by one.
Range EvenSlice(Area area, size_t count, int parts, int index);

}  // namespace syncline::collective
