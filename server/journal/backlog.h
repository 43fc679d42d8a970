// Tracks how much of each job waits for the disk, and whether the disk makes progress. A
// disk that takes something now and then is slow; one that takes nothing for `patience`
// is stuck.
//
//   Backlog backlog({.bytes = 256 << 20, .patience = absl::Seconds(5)});
//   backlog.Add(job, bytes, now);  // waits
//   backlog.Begin(job, bytes);  // is being written
//   backlog.Moved(now);  // some of it was written
//   backlog.Done(bytes, now);  // is on the disk
//
// Thread safety: none. Times are inputs.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "absl/time/time.h"

namespace syncline {

struct BacklogLimits {
  uint64_t bytes = uint64_t{256} << 20;
  absl::Duration patience = absl::Seconds(5);
};

class Backlog {
 public:
  explicit Backlog(const BacklogLimits& limits) : limits_(limits) {}

  // Returns whether `bytes` more fit. Anything fits into an empty backlog, also if it is
  // larger than the limit.
  bool HasRoom(uint64_t bytes) const {
    return held_ == 0 || held_ + bytes <= limits_.bytes;
  }
  void Add(uint64_t job, uint64_t bytes, absl::Duration now);
  void Begin(uint64_t job, uint64_t bytes);
  void Moved(absl::Duration now) { moved_ = now; }
  void Done(uint64_t bytes, absl::Duration now);
  // Forgets what waits of that job.
  void Drop(uint64_t job);

  // Returns the time at which the disk counts as stuck unless it makes progress before:
  // after `times` the patience.
  absl::Duration deadline(int times = 1) const {
    return moved_ + times * limits_.patience;
  }
  // Returns the job with the most waiting bytes; nothing if nothing waits.
  std::optional<uint64_t> largest() const;
  uint64_t held() const { return held_; }

 private:
  const BacklogLimits limits_;
  uint64_t held_ = 0;  // waiting or being written
  std::map<uint64_t, uint64_t> waiting_;
  absl::Duration moved_ = absl::ZeroDuration();
};

}  // namespace syncline
