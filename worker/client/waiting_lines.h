// Which of the reasons that the coordinator gives for waiting, one a second, are said in a
// worker's log: each new one at once, and one that stays after 1 s, 2 s, 4 s … more, at
// last once a minute.
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
  // How long it has taken so far, such as ", 7 s", makes no other reason.
  bool IsDue(std::string_view reason, absl::Duration now);

 private:
  std::string cause_;
  absl::Duration due_at_;
  absl::Duration interval_;
};

}  // namespace syncline
