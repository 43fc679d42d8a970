// Whether a file has changed, for those who go by what it said within the last second.
//
//   if (file_.IsDue() && looking_.TryLock()) {
//     if (file_.HasChanged()) Read();
//     looking_.Unlock();
//   }
//
// Thread safety: IsDue from any thread; HasChanged from one at a time.
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
  // `clock` outlives it; null: the machine's.
  WatchedFile(std::string path, const Clock* clock)
      : path_(std::move(path)), given_clock_(clock) {}

  const std::string& path() const { return path_; }

  // Whether nobody has looked for a second.
  bool IsDue() const;

  // Looks. True when it is not what it was at the last look, the first time always.
  bool HasChanged();

 private:
  // Changes with the file: inode, bytes, time of the last change.
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
