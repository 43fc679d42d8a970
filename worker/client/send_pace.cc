#include "worker/client/send_pace.h"

#include <algorithm>

namespace syncline {
namespace {

// One on its way back, one in each of the cables, and one between.
constexpr size_t kBlocksAhead = 4;
constexpr absl::Duration kShortestPatience = absl::Milliseconds(20);
constexpr absl::Duration kLongestPatience = absl::Seconds(2);

}  // namespace

bool SendPace::MaySend(const Look& look, absl::Duration now) {
  const bool has_view = look.held_bytes < held_bytes_;
  if (has_view || look.held_bytes == 0) moved_at_ = now;
  held_bytes_ = look.held_bytes;
  // What is on the way and what is held go around together.
  const size_t most = std::max(kBlocksAhead * look.block_bytes, 2 * look.window_bytes);
  if (look.held_bytes <= most || look.bytes_per_second <= 0) return true;
  const absl::Duration crossing =
      absl::Seconds(static_cast<double>(look.held_bytes) / look.bytes_per_second);
  const absl::Duration patience =
      std::clamp(crossing, kShortestPatience, kLongestPatience);
  return now - moved_at_ > patience;
}

}  // namespace syncline
