// A program's request to a group, and the message header by which ranks detect that they
// requested different operations.
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

// Memory must stay valid and untouched until the operation is done. Input and output may
// be the same address if both have the same size (all-reduce, broadcast, reduce).
// All-gather's input may be its own slice of the output. Otherwise input and output must
// not overlap.
struct Call {
  CollectiveOp op = CollectiveOp::kAllReduce;
  ElementType type = ElementType::kF32;
  ReduceOp reduce = ReduceOp::kSum;
  double factor = 1;  // kPremultipliedSum: multiplies this rank's values
  const void* input = nullptr;
  void* output = nullptr;
  size_t count = 0;  // elements; see CollectiveOp
  int root = 0;      // kSendReceive: the receiver
  int source = 0;    // kSendReceive: the sender
  uint32_t tag = 0;  // kSendReceive
  // What the elements mean to the program, beyond their type. Ranks compare it, too. At
  // most kLongestLabel bytes.
  std::string label = {};
  // kAllToAll: number of elements to and from each rank. Empty: `count` each.
  std::vector<size_t> send_counts = {};
  std::vector<size_t> receive_counts = {};
  std::optional<Algorithm> algorithm = {};        // empty: the group chooses
  absl::Duration timeout = absl::ZeroDuration();  // zero: the group's timeout
};

inline constexpr size_t kLongestLabel = 23;

// Values of CallHeader::algorithm for operations without a schedule: on the board, and
// over NCCL.
inline constexpr uint8_t kBoardAlgorithm = 255;
inline constexpr uint8_t kNcclAlgorithm = 254;

// Header of 64 bytes before the data that a rank sends to another in an operation.
struct CallHeader {
  uint64_t sequence = 0;  // number in the group, or between the two ranks
  uint64_t count = 0;
  uint64_t segment = 0;
  uint32_t root = 0;
  uint32_t source = 0;
  uint32_t tag = 0;
  uint8_t op = 0;
  uint8_t type = 0;
  uint8_t reduce = 0;
  uint8_t algorithm = 0;
  uint8_t exact = 0;                           // exact_order, if it affects the result
  std::array<char, kLongestLabel> label = {};  // ends at the first zero byte, if any

  bool operator==(const CallHeader& other) const {
    return sequence == other.sequence && count == other.count &&
           segment == other.segment && root == other.root && source == other.source &&
           tag == other.tag && op == other.op && type == other.type &&
           reduce == other.reduce && algorithm == other.algorithm &&
           exact == other.exact && label == other.label;
  }
};
static_assert(sizeof(CallHeader) == 64);

// Returns text such as "all_reduce (sum) number 7 of 100 f32 by ring".
std::string Describe(const CallHeader& header);

// Returns FailedPrecondition, which says what both ranks requested and what to do.
absl::Status Mismatch(int rank, const CallHeader& its, const CallHeader& own);

// Fails with InvalidArgument if the call lacks memory that `rank` needs.
absl::Status CheckMemory(const Call& call, int rank);

// Attach to an error the rank that caused it, and read it back.
void SetFailedRank(absl::Status& status, int rank);
std::optional<int> FailedRank(const absl::Status& status);

}  // namespace syncline::collective
