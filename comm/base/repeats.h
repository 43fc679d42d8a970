// Of what happens again and again the 1st, 2nd, 4th, 8th … time is said, so that nobody fills
// a disk with lines, nor hides one kind behind another.
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
  // What comes after so many kinds counts with all others of its group.
  static constexpr size_t kMostKinds = 4096;

  // How often this kind has come by now, if that is to be said; otherwise 0. Whoever makes
  // many kinds hides those of its group only: a group is nothing that a caller invents.
  uint64_t ToSay(const std::string& kind, const std::string& group)
      ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  absl::Mutex mutex_;
  std::map<std::string, uint64_t> times_ ABSL_GUARDED_BY(mutex_);   // by kind
  std::map<std::string, uint64_t> groups_ ABSL_GUARDED_BY(mutex_);  // what has no kind
};

}  // namespace syncline
