// Schedules: what one rank does in a collective operation, as data.
//
// An algorithm is a pure function from a problem (operation, rank, ranks, elements) to a
// list of steps: send, receive, reduce or copy a range, and what each step waits for. The
// same lists run in the engine (comm/collective/group), in the checker that tests them
// for every number of ranks, and can be counted for a cost model.
//
// Between two ranks messages flow in the order of the steps, in each direction. A step
// moves elements from the front of its range to the back, and others may follow closely:
// a step that waits for another one over the very same range may treat an element as
// soon as the other one has treated it. So a chain of receive and send is a pipeline
// without being cut into chunks.
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
  kAllReduce,      // output (count): in, this rank's values; out, those of all, reduced
  kReduceScatter,  // input (ranks x count) to output (count): slice `rank`, reduced
  kAllGather,      // input (count) to output (ranks x count)
  kBroadcast,      // output (count): the root's
  kReduce,         // input (count) to the root's output (count)
  kGather,         // input (count) to the root's output (ranks x count)
  kScatter,        // the root's input (ranks x count) to output (count)
  kAllToAll,       // input (a slice for each rank) to output (a slice from each rank)
  kBarrier,        // nothing moves
  kSendReceive,    // input to the rank `root`; or, where rank == root, from `source`
};

enum class Algorithm : uint8_t {
  kDirect,    // everybody talks to everybody it has to, at once
  kRing,      // neighbours only; a broadcast is a chain
  kDoubling,  // whole vectors, partners at distance 1, 2, 4, ...; all-gather as Bruck's
  kHalving,   // recursive halving, then recursive doubling (Rabenseifner)
  kTree,      // binomial
  kBruck,     // all-to-all in log2(ranks) rounds
  kHierarchical,  // within hosts, then a ring of hosts for each slice, then within hosts
  kDoubleTree,    // two binary trees, half of the values each
  kTorus,         // rings within the rows of a grid, then its columns, then its rows
  kPairwise,      // all-to-all with one partner after the other
};

inline constexpr Algorithm kAllAlgorithms[] = {
    Algorithm::kDirect,       Algorithm::kRing,       Algorithm::kDoubling,
    Algorithm::kHalving,      Algorithm::kTree,       Algorithm::kBruck,
    Algorithm::kHierarchical, Algorithm::kDoubleTree, Algorithm::kTorus,
    Algorithm::kPairwise};

// "all_reduce", "ring".
std::string_view CollectiveName(CollectiveOp op);
std::string_view AlgorithmName(Algorithm algorithm);
// InvalidArgument names the nearest one.
absl::StatusOr<CollectiveOp> ParseCollective(std::string_view name);
absl::StatusOr<Algorithm> ParseAlgorithm(std::string_view name);

struct Problem {
  CollectiveOp op = CollectiveOp::kAllReduce;
  int rank = 0;
  int ranks = 1;
  int root = 0;
  int source = 0;    // of kSendReceive
  size_t count = 0;  // elements, see CollectiveOp
  // Ranks of each host, which have consecutive numbers; 1 where hosts have different
  // numbers of ranks, too.
  int local = 1;
  // The direct all-reduce takes so many elements after each other, so that what was
  // reduced is passed on while it is in the cache; 0: all at once.
  size_t segment = 0;
  // Reductions combine values in the order of ranks, from left to right, and round once: the
  // same bits by every algorithm that has it.
  bool exact = false;
  // Of `exact`: partial results would be rounded where they travel (BF16, FP16), so that only
  // the ranks' own values may.
  bool rounds = false;
  // Of kAllToAll: elements to and from each rank. Empty: `count` each.
  std::vector<size_t> send_counts = {};
  std::vector<size_t> receive_counts = {};
};

enum class Area : uint8_t { kInput, kOutput, kScratch };

struct Range {
  Area area = Area::kOutput;
  size_t first = 0;  // element
  size_t count = 0;

  bool operator==(const Range& other) const {
    return area == other.area && first == other.first && count == other.count;
  }
  size_t end() const { return first + count; }
};

enum class Action : uint8_t {
  kCopy,     // target = source
  kSend,     // source to the peer
  kReceive,  // target = what comes from the peer
  kReduce,   // target = source, combined with what comes from each of the peers
  kFold,     // target = parts, combined from left to right
};

struct Step {
  Action action = Action::kCopy;
  Range target = {};
  Range source = {};
  std::vector<int> peers = {};
  std::vector<uint32_t> waits = {};  // indices of earlier steps
  std::vector<Range> parts = {};     // of kFold, as long as the target
  uint32_t turn = 0;  // kReduce: so many peers come before the source, from left to right
  // kReduce, kFold: the target is whole now; an average is divided here.
  bool completes = false;

  size_t count() const { return action == Action::kSend ? source.count : target.count; }
};

struct Schedule {
  std::vector<Step> steps;
  size_t scratch = 0;  // elements
};

// Whether `step` may treat element i as soon as `wait` has treated it.
bool FollowsClosely(const Step& step, const Step& wait);

// InvalidArgument for a problem that makes no sense; Unimplemented where the algorithm
// does not solve it.
absl::StatusOr<Schedule> MakeSchedule(const Problem& problem, Algorithm algorithm);

bool Supports(Algorithm algorithm, const Problem& problem);

bool Reduces(CollectiveOp op);

// How long `count` elements are cut for `parts` ranks: the first ones are longer by one
// where it does not divide.
Range EvenSlice(Area area, size_t count, int parts, int index);

}  // namespace syncline::collective
