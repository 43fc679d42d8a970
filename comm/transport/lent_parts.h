// Splits a payload into the part that can be lent to a process of the same host and the
// part that must travel with the loan, because it lies elsewhere. The latter are headers
// of values that a program has in lendable memory.
//
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <optional>

#include "comm/base/buffer.h"

namespace syncline {

// Enough for the headers of all tiles of a block.
inline constexpr size_t kMaxLentHeadBytes = 1024;

struct LentParts {
  Payload head = {};
  ByteView body = {};  // the bytes of the slices after the head, contiguous
};

// Returns the longest contiguous run of bytes at the end of the payload, and everything
// before it. Only slices with an owner belong to the run: only an owner can keep lent
// memory from being used again. Returns nothing if there is no such run, or if more than
// kMaxLentHeadBytes precede it.
std::optional<LentParts> PartsToLend(const Payload& payload);

}  // namespace syncline
