#include "comm/transport/lent_parts.h"

#include <iterator>

namespace syncline {

std::optional<LentParts> PartsToLend(const Payload& payload) {
  LentParts parts;
  auto first = payload.end();
  while (first != payload.begin()) {
    const Slice& slice = *std::prev(first);
    const bool follows =
        parts.body.empty() || slice.data + slice.size == parts.body.data();
    if (slice.owner == nullptr || !follows) break;
    parts.body = {slice.data, slice.size + parts.body.size()};
    --first;
  }
  parts.head.assign(payload.begin(), first);
  if (parts.body.empty() || PayloadBytes(parts.head) > kMaxLentHeadBytes) {
    return std::nullopt;
  }
  return parts;
}

}  // namespace syncline
