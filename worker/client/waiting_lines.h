// Decides which of the coordinator's reasons for waiting, which come once a second, are
// written to a worker's log. A new reason is written at once. A reason that stays is
// written again after 1 s, then after 2 s, 4 s, ... more, and at last once a minute.
//
//   if (lines.IsDue("waiting for server 1 of 2, 7 s", clock.Now())) log.Info(...);
//
// Thread safety: none.
#pragma once

#include <string>
#include <string_view>

#include "absl/time/time.h"

namespace syncline {

class WaitingLines {
 public:
  // Returns whether to write this reason now. Reasons that differ only in the time
  // waited, such as ", 7 s", count as the same.
  bool IsDue(std::string_view reason, absl::Duration now);

 private:
  std::string cause_;
  absl::Duration due_at_;
  absl::Duration interval_;
};

}  // namespace syncline
