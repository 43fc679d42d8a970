// The operations that the ranks of a simulated group call together, their inputs, and the
// expected results. Values are small integers, so that every order of sums gives the same
// bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/collective/group/call.h"

namespace syncline::group_sim {

struct Operation {
  collective::CollectiveOp op = collective::CollectiveOp::kBarrier;
  collective::ElementType type = collective::ElementType::kF32;
  collective::ReduceOp reduce = collective::ReduceOp::kSum;
  size_t count = 0;
  int root = 0;
  int source = 0;
  std::optional<collective::Algorithm> algorithm = {};
  // counts[from][to] of an all-to-all with unequal counts. Otherwise empty.
  std::vector<std::vector<size_t>> counts = {};
  uint64_t salt = 0;  // determines the values
};

// Whether the rank calls the operation. Only two ranks call a send and receive.
bool TakesPart(const Operation& operation, int rank);

// Memory of one rank's call. If the operation is in place, the output has the input.
struct Memory {
  std::vector<std::byte> input;
  std::vector<std::byte> output;
};
Memory MemoryOf(const Operation& operation, int rank, int ranks);
collective::Call CallOf(const Operation& operation, int rank, Memory& memory);

// Says how the output differs from the expected one; nullopt: it does not.
std::optional<std::string> Differs(const Operation& operation, int rank, int ranks,
                                   const std::vector<std::byte>& output);

}  // namespace syncline::group_sim
