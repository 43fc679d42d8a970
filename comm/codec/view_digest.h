// A digest that compares a worker's first values with the servers' in a few bytes, so
// that values that the worker already holds are not sent.
//
//   const uint64_t digest = ViewDigest(payload, range.elements);
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>

#include "comm/base/buffer.h"

namespace syncline {

// Returns a 64-bit digest of the tiles of an encoded block; the step and epoch in their
// headers do not count. Blocks that differ in a single 64-bit word never have the same
// digest; other differing blocks hardly ever do. It does not withstand deliberate
// collisions. REQUIRES: the payload of a BlockWriter or of EncodeBlock, for a block of
// `elements`.
uint64_t ViewDigest(const Payload& payload, uint32_t elements);

}  // namespace syncline
