// How much of each job waits for the disk, and whether the disk moves. A disk is slow as
// long as it takes something now and then, and stuck when it takes nothing for `patience`.
//
//   Backlog backlog({.bytes = 256 << 20, .patience = absl::Seconds(5)});
//   backlog.Add(job, bytes, now);    // waits
//   backlog.Begin(job, bytes);       // is being written
//   backlog.Moved(now);              // some of it was
//   backlog.Done(bytes, now);        // is on the disk
//
// Thread safety: none. Pure: times are inputs.
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

  // One that is larger than the limit fits where nothing else is.
  bool HasRoom(uint64_t bytes) const {
    return held_ == 0 || held_ + bytes <= limits_.bytes;
  }
  void Add(uint64_t job, uint64_t bytes, absl::Duration now);
  void Begin(uint64_t job, uint64_t bytes);
  void Moved(absl::Duration now) { moved_ = now; }
  void Done(uint64_t bytes, absl::Duration now);
  // What waits of that job is given up.
  void Drop(uint64_t job);

  // When the disk is stuck, unless it moves before; `times` as patient.
  absl::Duration deadline(int times = 1) const {
    return moved_ + times * limits_.patience;
  }
  // The job of which most waits; nothing when none waits.
  std::optional<uint64_t> largest() const;
  uint64_t held() const { return held_; }

 private:
  const BacklogLimits limits_;
  uint64_t held_ = 0;  // waits, or is being written
  std::map<uint64_t, uint64_t> waiting_;
  absl::Duration moved_ = absl::ZeroDuration();
};

}  // namespace syncline
