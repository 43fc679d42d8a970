// Limits repeated log lines to the 1st, 2nd, 4th, 8th … time, so that they neither fill a
// disk nor hide other kinds of lines.
//
//   if (const uint64_t times = repeats_.ToSay(absl::StrCat(host, "\n", reason), reason)) { … }
//
// Thread safety: any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace syncline {

class Repeats {
 public:
  // Further kinds are counted together for their group.
  static constexpr size_t kMaxKinds = 4096;

  // Counts an event of this kind. Returns the count if it should be logged, otherwise 0.
  // A client that creates many kinds hides only those of its group, so clients must not
  // choose the group.
  uint64_t ToSay(const std::string& kind, const std::string& group)
      ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  absl::Mutex mutex_;
  std::map<std::string, uint64_t> times_ ABSL_GUARDED_BY(mutex_);  // by kind
  // events without a kind of their own
  std::map<std::string, uint64_t> groups_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncline
