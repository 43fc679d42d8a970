// What the ranks of a simulated group call together, the values that they bring, and what
// must come out. Values are small integers, so that every order of sums has the same bits.
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
  // Of an all-to-all with unequal counts: from, to. Otherwise empty.
  std::vector<std::vector<size_t>> counts = {};
  uint64_t salt = 0;  // of its values
};

// Whether that rank calls it: of a send and receive two do.
bool TakesPart(const Operation& operation, int rank);

// Memory of one rank's call; the output, where it is in place, has the input in it.
struct Memory {
  std::vector<std::byte> input;
  std::vector<std::byte> output;
};
Memory MemoryOf(const Operation& operation, int rank, int ranks);
collective::Call CallOf(const Operation& operation, int rank, Memory& memory);

// How the output differs from what must come out; nullopt: not at all.
std::optional<std::string> Differs(const Operation& operation, int rank, int ranks,
                                   const std::vector<std::byte>& output);

}  // namespace syncline::group_sim
