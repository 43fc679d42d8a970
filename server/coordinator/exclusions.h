// Ranks that were removed from a job because they held up all others (goal_answers.h).
// Decides when a successor may become a member again. On another host it may at once. On
// the same host it waits for ten minutes, doubled by each further exclusion, and an hour
// at most.
//
//   exclusions.Add(3, "gpu7:4711", now);
//   exclusions.MayJoin(3, "gpu7:9001", now);   // false
//   exclusions.MayJoin(3, "gpu8:12", now);     // true
//
// Keeps the last 256 pairs of rank and host. The number of exclusions is always exact.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"

namespace syncline {

// An exclusion as it is stored. Times are not stored, because they mean nothing to the
// next coordinator.
struct RecordedExclusion {
  uint32_t rank = 0;
  std::string host = {};
  uint32_t times = 0;
};

class Exclusions {
 public:
  // `name` is the worker's name, "host:process".
  void Add(uint32_t rank, const std::string& name, absl::Duration now);
  bool MayJoin(uint32_t rank, const std::string& name, absl::Duration now) const;
  // Returns the time from the exclusion on that a successor on the same host must wait.
  absl::Duration Wait(uint32_t rank, const std::string& name) const;
  // Returns why that worker must wait. Empty: it need not.
  std::string Why(uint32_t rank, const std::string& name, absl::Duration now) const;

  // Number of exclusions of all ranks together.
  uint32_t count() const { return count_; }
  std::vector<RecordedExclusion> ToRecord() const;
  // Restores stored exclusions, as if each had happened at the first Tick. `count` is
  // their number in all.
  void Restore(const std::vector<RecordedExclusion>& recorded, uint32_t count);
  void Tick(absl::Duration now);

 private:
  struct Record {
    uint32_t times = 0;
    std::optional<absl::Duration> at = std::nullopt;
  };
  using Key = std::pair<uint32_t, std::string>;  // rank and host

  void ForgetOldest();

  std::map<Key, Record> records_;
  uint32_t count_ = 0;
};

}  // namespace syncline
