// Ranks that were taken out of a job because they held up all others (goal_answers.h), and
// when a successor of each may be a member again: on another host at once, on the same one
// after ten minutes, twice as many after each further exclusion, an hour at most.
//
//   exclusions.Add(3, "gpu7:4711", now);
//   exclusions.MayJoin(3, "gpu7:9001", now);   // false
//   exclusions.MayJoin(3, "gpu8:12", now);     // true
//
// The last 256 pairs of rank and host are known; how many exclusions there were, always.
//
// Thread safety: none; pure, but for what it remembers.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"

namespace syncline {

// As it is stored: times do not outlive the coordinator.
struct RecordedExclusion {
  uint32_t rank = 0;
  std::string host = {};
  uint32_t times = 0;
};

class Exclusions {
 public:
  // `name` of a worker is "host:process".
  void Add(uint32_t rank, const std::string& name, absl::Duration now);
  bool MayJoin(uint32_t rank, const std::string& name, absl::Duration now) const;
  // How long a successor on the same host waits, from the exclusion on.
  absl::Duration Wait(uint32_t rank, const std::string& name) const;
  // Why that worker waits; empty: it does not.
  std::string Why(uint32_t rank, const std::string& name, absl::Duration now) const;

  // Of all ranks, together.
  uint32_t count() const { return count_; }
  std::vector<RecordedExclusion> ToRecord() const;
  // As if each had been done at the first Tick; `count` in all.
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
