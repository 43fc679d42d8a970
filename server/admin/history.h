// What jobs did of late, for the dashboard's charts: figures sampled from the coordinator's
// view. Bounded: whatever comes and goes, a history takes a few megabytes at most. What
// happened meanwhile the coordinator's events say (server/coordinator/events.h).
//
//   History history;
//   history.Add(coordinator.View(now));   // once a second
//   ... history.FiguresJson(History::Span::kAll) ...
//
// Thread-safe. Wall-clock times are for show alone and may jump.
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
#include "server/admin/own_times.h"
#include "server/coordinator/coordinator.h"

namespace syncline {

struct HistoryLimits {
  // Every sample of the last while, then one of `coarse` samples.
  size_t fine_points = 120;
  size_t coarse_points = 360;
  size_t coarse = 10;
  // Beyond them the one that ended first goes; while all are live, a newcomer has no history.
  size_t jobs = 32;
};

class History {
 public:
  explicit History(const HistoryLimits& limits = {}) : limits_(limits) {}

  void Add(const CoordinatorView& view) { Add(view, absl::Now()); }
  void Add(const CoordinatorView& view, absl::Time now);

  enum class Span {
    kAll,
    kLatest,  // what a reader who asks every other second has not seen yet
  };
  // {"jobs":[{"job":1,"name":"bert","points":[{"time":1763.5,"step":9,"loss":0.5,"bytes":7,
  // "samples":288},…]},…]}: seconds since 1970 (now: of the last sample), the step of the job, the
  // last loss or null, what the members have sent and received, and the samples that they have
  // contributed, since the job began here; oldest first. With kAll each job has "workers", too, as own_times.h keeps
  // them: [{"rank":0,"incarnation":1,"steps":9,"seconds":0.9,"points":[0.1,…]},…].
  std::string FiguresJson(Span span) const;

 private:
  struct Point {
    absl::Time time;
    uint64_t step = 0;
    std::optional<double> loss = {};
    uint64_t bytes = 0;
    uint64_t samples = 0;
  };
  // Of a job. A member's count begins anew with each of its lives, and goes with it; this
  // only grows.
  struct Count {
    std::map<uint32_t, uint64_t> of_members = {};  // by rank, of its present life
    uint64_t sum = 0;

    void Add(const std::vector<MemberView>& members, uint64_t MemberView::*figure);
  };
  struct Job {
    std::string name;
    uint64_t seen = 0;   // the last sample in which it was live
    uint64_t added = 0;  // samples
    std::deque<Point> fine = {}, coarse = {};
    bool is_over = false;
    uint64_t step =
        0;  // the lowest of the members; does not fall when one joins that has none yet
    Count bytes = {}, samples = {};
    OwnTimes own_times = {};
  };

  void AddJob(const JobView& view, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddPoint(const Point& point, Job& job) const;
  // False when all are live.
  bool ForgetAJob() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const HistoryLimits limits_;
  mutable absl::Mutex mutex_;
  uint64_t samples_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<uint32_t, Job> jobs_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncline
