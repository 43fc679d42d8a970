// Measures how long each worker of a job is busy with a step itself, without waiting for
// others. Workers that wait for each other take equally long for a step; this shows which
// of them is slow. Each Add that finds new steps gives one point. Only the lowest ranks
// and the latest points are kept.
//
//   OwnTimes times;
//   times.Add(job.members);      // each second
//   ... times.workers() ...
//
// Thread safety: that of a plain value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "server/coordinator/views.h"

namespace syncline {

class OwnTimes {
 public:
  static constexpr size_t kPoints = 60;
  static constexpr uint32_t kRanks = 256;

  struct Worker {
    uint32_t incarnation = 0;
    // Sums at the last Add. The next point counts from them.
    uint64_t steps = 0;
    double seconds = 0;
    std::deque<double> points =
        {};  // seconds of a step, to the microsecond; oldest first
  };

  // Forgets workers that are not among the members.
  void Add(const std::vector<MemberView>& members);

  const std::map<uint32_t, Worker>& workers() const { return workers_; }  // by rank

 private:
  std::map<uint32_t, Worker> workers_;
};

}  // namespace syncline
