#include "worker/client/send_pace.h"

#include <algorithm>

namespace syncline {
namespace {

// Number of blocks that a worker may be ahead: one whose view is on its way back, and one
// that has just arrived. Views of blocks beyond that are sent at the end of a step, when
// nothing arrives any more. With large blocks and a slow cable, two more blocks cost a
// second per step, with any number of servers. On a fast cable the window is larger.
constexpr size_t kBlocksAhead = 2;
constexpr absl::Duration kShortestPatience = absl::Milliseconds(20);
constexpr absl::Duration kLongestPatience = absl::Seconds(2);

// Returns the largest number of bytes that a worker may be ahead. Two windows: one of
// bytes under way, and one of bytes that the shard holds.
size_t Most(const SendPace::Look& look) {
  return std::max(kBlocksAhead * look.block_bytes, 2 * look.window_bytes);
}

}  // namespace

size_t SendPace::Countable(const Look& look) { return 4 * Most(look); }

bool SendPace::MaySend(const Look& look, absl::Duration now) {
  const bool has_view = look.held_bytes < held_bytes_;
  if (has_view || look.held_bytes == 0) moved_at_ = now;
  held_bytes_ = look.held_bytes;
  if (look.ahead_bytes <= Most(look) || look.bytes_per_second <= 0) return true;
  const absl::Duration crossing =
      absl::Seconds(static_cast<double>(look.ahead_bytes) / look.bytes_per_second);
  const absl::Duration patience =
      std::clamp(crossing, kShortestPatience, kLongestPatience);
  return now - moved_at_ > patience;
}

}  // namespace syncline
