// Tells a worker's first values from the servers' by a few bytes: what it holds already
// is not sent to it.
//
//   const uint64_t digest = ViewDigest(payload, range.elements);
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>

#include "comm/base/buffer.h"

namespace syncline {

// 64 bits of what the tiles of an encoded block hold, whatever step and epoch their headers
// name. Blocks that differ in a single word never have the same digest, others hardly ever;
// anyone who wants to can make such a pair. REQUIRES: a payload of a BlockWriter or of
// EncodeBlock, for a block of `elements`.
uint64_t ViewDigest(const Payload& payload, uint32_t elements);

}  // namespace syncline
