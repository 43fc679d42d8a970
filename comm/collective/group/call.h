// What a program asks a group to do, and the header by which ranks find out that they were
// asked for different things.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "comm/collective/element/element.h"
#include "comm/collective/schedule/schedule.h"

namespace syncline::collective {

// Memory stays valid and untouched until the operation is done. Input and output may be the
// same address where both have the same size (all-reduce, broadcast, reduce); all-gather's
// input may lie where its output would have it. Otherwise they do not overlap.
struct Call {
  CollectiveOp op = CollectiveOp::kAllReduce;
  ElementType type = ElementType::kF32;
  ReduceOp reduce = ReduceOp::kSum;
  double factor = 1;  // of kPremultipliedSum: of this rank's values
  const void* input = nullptr;
  void* output = nullptr;
  size_t count = 0;  // elements, see CollectiveOp
  int root = 0;      // kSendReceive: who receives
  int source = 0;    // kSendReceive: who sends
  uint32_t tag = 0;  // of kSendReceive
  // What the elements are to the program, where the type does not say it; compared, too.
  // Up to kLongestLabel bytes.
  std::string label = {};
  // Of kAllToAll: elements to and from each rank; empty: `count` each.
  std::vector<size_t> send_counts = {};
  std::vector<size_t> receive_counts = {};
  std::optional<Algorithm> algorithm = {};        // instead of the group's choice
  absl::Duration timeout = absl::ZeroDuration();  // zero: the group's
};

inline constexpr size_t kLongestLabel = 23;

// Of CallHeader::algorithm: no schedule, but the board.
inline constexpr uint8_t kBoardAlgorithm = 255;

// 64 bytes in front of what a rank sends to another in an operation.
struct CallHeader {
  uint64_t sequence = 0;  // the operation's number in its group, or between the two ranks
  uint64_t count = 0;
  uint64_t segment = 0;
  uint32_t root = 0;
  uint32_t source = 0;
  uint32_t tag = 0;
  uint8_t op = 0;
  uint8_t type = 0;
  uint8_t reduce = 0;
  uint8_t algorithm = 0;
  uint8_t exact = 0;                           // exact_order, where it changes anything
  std::array<char, kLongestLabel> label = {};  // ends with it, or with the first zero

  bool operator==(const CallHeader& other) const {
    return sequence == other.sequence && count == other.count &&
           segment == other.segment && root == other.root && source == other.source &&
           tag == other.tag && op == other.op && type == other.type &&
           reduce == other.reduce && algorithm == other.algorithm &&
           exact == other.exact && label == other.label;
  }
};
static_assert(sizeof(CallHeader) == 64);

// "all_reduce (sum) number 7 of 100 f32 by ring".
std::string Describe(const CallHeader& header);

// FailedPrecondition that says what the two were asked for, and what to do.
absl::Status Mismatch(int rank, const CallHeader& its, const CallHeader& own);

// InvalidArgument where `rank` needs memory that the call does not have.
absl::Status CheckMemory(const Call& call, int rank);

// The rank that a group's error is about.
void SetFailedRank(absl::Status& status, int rank);
std::optional<int> FailedRank(const absl::Status& status);

}  // namespace syncline::collective
