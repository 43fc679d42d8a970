// What of a payload can be lent to a process of the same host, and what has to travel with
// the loan since it lies somewhere else: headers of values that a program has in lendable
// memory.
#pragma once

#include <cstddef>
#include <optional>

#include "comm/base/buffer.h"

namespace syncline {

// As long as the headers of the tiles of a block.
inline constexpr size_t kMaxLentHeadBytes = 1024;

struct LentParts {
  Payload head = {};
  ByteView body = {};  // of the slices after it
};

// The longest run of bytes at the end of the payload, and all before it. Slices of the run
// have owners, which alone can keep lent memory from being used again. Nothing where there
// is no such run, or too much before it.
std::optional<LentParts> PartsToLend(const Payload& payload);

}  // namespace syncline
