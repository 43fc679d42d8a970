// The events of all jobs (server/coordinator/events.h) with their times of day: kept for
// people, bounded, and stored, so that they outlive the coordinator.
//
//   log.Add(event);                                    // as the machine says them
//   for (const StoreRecord& record : log.Changes()) …  // a few times a second: store it
//   log.Show();                                        // from now on readers see them
//   log.Of(7);                                         // the events of job 7, oldest first
//   log.Ends();                                        // what became of jobs that are over
//
// Numbers count the events of a job from 1. Readers see only what is stored: no number is
// seen twice for different events, also when the coordinator is killed between the two.
//
// Thread safety: Of, All, Ends and Latest may be called from any thread, the others from one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/coordinator/coordinator.h"

namespace syncline {

struct LoggedEvent {
  uint64_t number = 0;
  absl::Time time = absl::UnixEpoch();
  CoordinatorEvent event = {};
};

// Of a job that is over.
struct JobEnd {
  LoggedEvent last = {};    // which says so
  std::string exit = {};    // the last exit that a launcher had told; empty: none
  absl::Duration age = {};  // since the end, by the time of day; not negative
};

struct EventLogLimits {
  size_t events = 200;  // of a job: then the oldest goes
  // With events: then the one whose last event is oldest goes. Those of no job stay.
  size_t jobs = 128;
  size_t words = 1024;  // bytes of a sentence
};

class EventLog {
 public:
  static constexpr char kRecords[] = "events/";

  explicit EventLog(const EventLogLimits& limits = {}) : limits_(limits) {}

  // What a coordinator before this one had stored under `key`. DataLoss when it cannot be
  // read: the events of that job are lost, and nothing else.
  absl::Status Restore(const std::string& key, const std::string& value);

  void Add(CoordinatorEvent event) ABSL_LOCKS_EXCLUDED(mutex_);
  void Add(CoordinatorEvent event, absl::Time now) ABSL_LOCKS_EXCLUDED(mutex_);
  // Records with what was added since the last Show; without a value: to be erased.
  std::vector<StoreRecord> Changes() const ABSL_LOCKS_EXCLUDED(mutex_);
  void Show() ABSL_LOCKS_EXCLUDED(mutex_);

  // Oldest first.
  std::vector<LoggedEvent> Of(uint32_t job) const ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<LoggedEvent> All() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Of jobs that are over, by their numbers.
  std::vector<JobEnd> Ends() const ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<JobEnd> Ends(absl::Time now) const ABSL_LOCKS_EXCLUDED(mutex_);
  // The last `most` of each job.
  std::map<uint32_t, std::vector<LoggedEvent>> Latest(size_t most) const
      ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Log {
    std::deque<LoggedEvent> events;
    uint64_t shown = 0;  // the last number that is stored

    // The last ones.
    std::vector<LoggedEvent> Shown(size_t most) const;
  };

  void Trim(Log& log) const;
  void ForgetJobs() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const EventLogLimits limits_;
  mutable absl::Mutex mutex_;
  std::map<uint32_t, Log> logs_ ABSL_GUARDED_BY(mutex_);  // by job
  std::set<uint32_t> forgotten_ ABSL_GUARDED_BY(mutex_);  // jobs, until that is stored
};

}  // namespace syncline
