// The events of all jobs (server/coordinator/events.h), with their times of day, for
// people. Their number is limited, and they are stored so that they outlive the
// coordinator.
//
//   log.Add(event);                                    // as the machine gives them out
//   for (const StoreRecord& record : log.Changes()) …  // a few times a second: store it
//   log.Show();                                        // readers see them from now on
//   log.Of(7);                                         // the events of job 7, oldest first
//   log.Ends();                                        // how jobs have ended
//
// The events of a job are numbered from 1. Readers see only events that are stored.
// Therefore no reader sees two different events with the same number, even if the
// coordinator is killed before it stores one.
//
// Thread safety: any thread may call Of, All, Ends and Latest. The other methods must be
// called by one thread.
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

// How a job ended.
struct JobEnd {
  LoggedEvent last = {};  // the event that says so
  // The last death of a process that a launcher reported. Empty: none.
  std::string exit = {};
  absl::Duration age = {};  // since the end, by the wall clock; not negative
};

struct EventLogLimits {
  size_t events = 200;  // of each job; the oldest is dropped first
  // Number of jobs with events. The job whose last event is oldest is dropped first.
  // Events that belong to no job are kept.
  size_t jobs = 128;
  size_t words = 1024;  // bytes of an event's text; the rest is cut off
};

class EventLog {
 public:
  static constexpr char kRecords[] = "events/";

  explicit EventLog(const EventLogLimits& limits = {}) : limits_(limits) {}

  // Takes what an earlier coordinator process stored under `key`. Fails with DataLoss if
  // the value cannot be read. Only the events of that job are lost then.
  absl::Status Restore(const std::string& key, const std::string& value);

  // Adds an event. Readers see it after the next Show.
  void Add(CoordinatorEvent event) ABSL_LOCKS_EXCLUDED(mutex_);
  void Add(CoordinatorEvent event, absl::Time now) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the records to store for what was added since the last Show. A record without
  // a value must be erased.
  std::vector<StoreRecord> Changes() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Shows readers what was added. Call it after the records of Changes are stored.
  void Show() ABSL_LOCKS_EXCLUDED(mutex_);

  // These return the oldest event first.
  std::vector<LoggedEvent> Of(uint32_t job) const ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<LoggedEvent> All() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the ends of jobs that are over, by job number.
  std::vector<JobEnd> Ends() const ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<JobEnd> Ends(absl::Time now) const ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the last `most` events of each job.
  std::map<uint32_t, std::vector<LoggedEvent>> Latest(size_t most) const
      ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Log {
    std::deque<LoggedEvent> events;
    uint64_t shown = 0;  // number of the last event that is stored

    // Returns the last `most` events that readers may see.
    std::vector<LoggedEvent> Shown(size_t most) const;
  };

  void Trim(Log& log) const;
  void ForgetJobs() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const EventLogLimits limits_;
  mutable absl::Mutex mutex_;
  std::map<uint32_t, Log> logs_ ABSL_GUARDED_BY(mutex_);  // by job
  // Jobs, until their erasure is stored.
  std::set<uint32_t> forgotten_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncline
