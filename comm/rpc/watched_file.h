// Detects changes of a file, for code that uses its contents of at most a second ago.
//
//   if (file_.IsDue() && looking_.TryLock()) {
//     if (file_.HasChanged()) Read();
//     looking_.Unlock();
//   }
//
// Thread safety: any thread may call IsDue; one at a time may call HasChanged.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>

#include "absl/time/time.h"
#include "comm/base/env.h"

namespace syncline {

class WatchedFile {
 public:
  // A null `clock` means the system's; otherwise it must outlive this object.
  WatchedFile(std::string path, const Clock* clock)
      : path_(std::move(path)), given_clock_(clock) {}

  const std::string& path() const { return path_; }

  // Returns true if the last look was at least a second ago.
  bool IsDue() const;

  // Looks at the file. Returns true when it differs from the last look, and the first
  // time.
  bool HasChanged();

 private:
  // Changes when the file changes: inode, size, time of the last change.
  using Stamp = std::tuple<uint64_t, int64_t, int64_t, int64_t>;

  absl::Duration Now() const;
  Stamp StampNow() const;

  const std::string path_;
  const Clock* const given_clock_;
  const SteadyClock clock_;
  std::atomic<int64_t> looked_at_ns_ = 0;
  bool has_looked_ = false;
  Stamp stamp_ = {};
};

}  // namespace syncline
