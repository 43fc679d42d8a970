// The ranks of a job whose launchers are stopping them: which life of each is to end, how
// long that may take, and at whose word. What follows from it is the job's (job_stop.cc).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"

namespace syncline {

class Stops {
 public:
  struct Stop {
    uint32_t incarnation = 0;   // the life that is to end
    absl::Duration until = {};  // a rank that still has a stream then lives on
    std::string by;             // "Ctrl-C to the launcher at gpu-3, run 7"
  };

  bool empty() const { return stops_.empty(); }
  bool contains(uint32_t rank) const { return stops_.contains(rank); }
  // REQUIRES: contains(rank).
  const Stop& at(uint32_t rank) const { return stops_.at(rank); }
  std::vector<uint32_t> ranks() const;
  // Of the lowest rank. REQUIRES: !empty().
  const std::string& by() const { return stops_.begin()->second.by; }
  // The last launcher that was told to end, also when none of its ranks is here any more;
  // empty: none was.
  const std::string& last_by() const { return last_by_; }

  void NoteLauncher(std::string by) { last_by_ = std::move(by); }
  // At the word of the launcher noted last.
  void Add(uint32_t rank, uint32_t incarnation, absl::Duration until);
  // True when it was being stopped.
  bool Forget(uint32_t rank) { return stops_.erase(rank) != 0; }

 private:
  std::map<uint32_t, Stop> stops_;  // by rank
  std::string last_by_;
};

}  // namespace syncline
