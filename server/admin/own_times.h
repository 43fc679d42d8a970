// How long each worker of a job was busy with a step by itself, without waiting for others:
// workers that wait for each other take equally long for a step, and this says who is slow.
// A point for each look that has new steps; of the lowest ranks, of the last looks.
//
//   OwnTimes times;
//   times.Add(job.members);      // each second
//   ... times.workers() ...
//
// Thread safety: as a plain value.
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
    // Sums at the last look, from which the next point is counted.
    uint64_t steps = 0;
    double seconds = 0;
    std::deque<double> points =
        {};  // seconds of a step, to the microsecond; oldest first
  };

  // Those who are not among them are forgotten.
  void Add(const std::vector<MemberView>& members);

  const std::map<uint32_t, Worker>& workers() const { return workers_; }  // by rank

 private:
  std::map<uint32_t, Worker> workers_;
};

}  // namespace syncline
