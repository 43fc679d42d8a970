// How a kPull says what its sender holds, so that a view that is there already is not sent
// (docs/wire_format.md; comm/codec/view_digest.h makes the digest).
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>

#include "comm/transport/message.h"

namespace syncline {

// On a kPull: the worker has values of its own, of which `samples` and `shard` are the
// digest. On a kPublish without a payload: the view is what these values are when they are
// published. One of MessageHeader::flags, as those in message.h.
inline constexpr uint16_t kFlagHeld = 16;
static_assert((kFlagHeld & (kFlagUnchanged | kFlagParting | kFlagAnew | kFlagRate)) == 0);

inline void SetDigest(MessageHeader& header, uint64_t digest) {
  header.samples = static_cast<uint32_t>(digest);
  header.shard = static_cast<uint32_t>(digest >> 32);
}
inline uint64_t DigestOf(const MessageHeader& header) {
  return header.samples | uint64_t{header.shard} << 32;
}

}  // namespace syncline
