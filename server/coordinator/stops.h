// The ranks of a job that are being stopped by their launchers. For each this holds the
// incarnation that is to end, the time limit, and the launcher. job_stop.cc decides what
// follows.
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
    uint32_t incarnation = 0;   // the incarnation that is to end
    absl::Duration until = {};  // a rank that is still connected then is not stopped
    std::string by;             // "Ctrl-C to the launcher at gpu-3, run 7"
  };

  bool empty() const { return stops_.empty(); }
  bool contains(uint32_t rank) const { return stops_.contains(rank); }
  // REQUIRES: contains(rank).
  const Stop& at(uint32_t rank) const { return stops_.at(rank); }
  std::vector<uint32_t> ranks() const;
  // Launcher of the lowest rank. REQUIRES: !empty().
  const std::string& by() const { return stops_.begin()->second.by; }
  // The last launcher that was told to end, even if none of its ranks is left. Empty:
  // none.
  const std::string& last_by() const { return last_by_; }

  void NoteLauncher(std::string by) { last_by_ = std::move(by); }
  // Notes that the launcher of the last NoteLauncher stops this rank.
  void Add(uint32_t rank, uint32_t incarnation, absl::Duration until);
  // Returns whether the rank was being stopped.
  bool Forget(uint32_t rank) { return stops_.erase(rank) != 0; }

 private:
  std::map<uint32_t, Stop> stops_;  // by rank
  std::string last_by_;
};

}  // namespace syncline
