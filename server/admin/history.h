// The recent history of jobs for the charts of the dashboard, sampled from the
// coordinator's view. Its size is limited to a few megabytes. Events of that time are in
// server/coordinator/events.h.
//
//   History history;
//   history.Add(coordinator.View(now));   // once a second
//   ... history.FiguresJson(History::Span::kAll) ...
//
// Thread safety: any thread. Wall-clock times are only for display and may jump.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/admin/member_sum.h"
#include "server/admin/own_times.h"
#include "server/coordinator/coordinator.h"

namespace syncline {

struct HistoryLimits {
  // All samples of the recent past are kept, and before that one of each `coarse`
  // samples.
  size_t fine_points = 120;
  size_t coarse_points = 360;
  size_t coarse = 10;
  // If there are more jobs, the one that ended first is dropped. If all of them are live,
  // a new job gets no history.
  size_t jobs = 32;
};

class History {
 public:
  explicit History(const HistoryLimits& limits = {}) : limits_(limits) {}

  // Adds a sample of all jobs.
  void Add(const CoordinatorView& view) { Add(view, absl::Now()); }
  void Add(const CoordinatorView& view, absl::Time now);

  enum class Span {
    kAll,
    kLatest,  // enough for a reader who asks every other second
  };
  // Returns the points of each job, oldest first:
  //
  //   {"jobs":[{"job":1,"name":"bert","points":[{"time":1763.5,"step":9,"loss":0.5,
  //   "bytes":7,"samples":288},…]},…]}
  //
  // `time` is in seconds since 1970, `loss` the last loss or null. `bytes` and `samples`
  // are what members have transferred and contributed since the job began here. With kAll
  // each job also has "workers" (own_times.h):
  //
  //   [{"rank":0,"incarnation":1,"steps":9,"seconds":0.9,"points":[0.1,…]},…]
  std::string FiguresJson(Span span) const;

 private:
  struct Point {
    absl::Time time;
    uint64_t step = 0;
    std::optional<double> loss = {};
    uint64_t bytes = 0;
    uint64_t samples = 0;
  };
  struct Job {
    std::string name;
    uint64_t seen = 0;   // number of the last sample in which the job was live
    uint64_t added = 0;  // number of samples of this job
    std::deque<Point> fine = {}, coarse = {};
    bool is_over = false;
    uint64_t step =
        0;  // the lowest of the members; does not fall when one joins that has none yet
    MemberSum bytes = {}, samples = {};
    OwnTimes own_times = {};
  };

  void AddJob(const JobView& view, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddPoint(const Point& point, Job& job) const;
  // Returns false if all jobs are live.
  bool ForgetAJob() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const HistoryLimits limits_;
  mutable absl::Mutex mutex_;
  uint64_t samples_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<uint32_t, Job> jobs_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncline
