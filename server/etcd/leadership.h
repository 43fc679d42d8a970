// Which of several coordinators leads: the one that made the leader's key in etcd, for as
// long as its lease lasts.
//
//   Leadership leadership(*etcd, {.address = "10.0.0.1:7070", .ttl = absl::Seconds(5)});
//   ... until leadership.leads() ...
//   EtcdStore store(*etcd, {leadership.guard(), [&] { return leadership.time_left(); }});
//   ... until on_lost ...
//   leadership.Resign();  // the next one leads at once
//
// A leader counts its time from before it asked etcd, by its own monotonic clock, and less
// than etcd does: when it is over here, nobody else leads yet. It never leads again
// afterwards; start the process anew. What it stores is guarded besides (etcd_store.h).
//
// Thread safety: any thread. Runs one of its own, which calls on_lost, at most once.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "comm/base/env.h"
#include "comm/base/log.h"
#include "comm/base/steady_condition.h"
#include "comm/base/timeouts.h"
#include "server/etcd/etcd_client.h"
#include "server/etcd/etcd_store.h"

namespace syncline {

struct LeadershipOptions {
  std::string address;  // where this coordinator is reached; others name it
  absl::Duration ttl;   // of the lease: whole seconds
  // How often a standby looks whether there is a leader.
  absl::Duration look_every = absl::Milliseconds(500);
  Logger log = {};
  // Failure::kRetryable: it led, and does not any more.
  std::function<void(const absl::Status&)> on_lost = [](const absl::Status&) {};
};

class Leadership {
 public:
  // F/2 in whole seconds, 5 s at least: an etcd that elects, or a disk that is slow for a
  // moment, unseats nobody.
  static absl::Duration TtlFor(const Timeouts& timeouts);

  // Begins to look at once. `etcd` is borrowed, and outlives this.
  Leadership(EtcdClient& etcd, LeadershipOptions options);
  ~Leadership();  // resigns

  bool leads() const { return time_left() > absl::ZeroDuration(); }
  // Of the lease, for sure; none before it leads, and afterwards.
  absl::Duration time_left() const;
  // Once it leads.
  EtcdGuard guard() const ABSL_LOCKS_EXCLUDED(mutex_);
  // The address of the leader, as far as is known; empty: nobody leads.
  std::string leader() const ABSL_LOCKS_EXCLUDED(mutex_);
  // What came of asking etcd last; Unavailable before it has answered once.
  absl::Status etcd_status() const ABSL_LOCKS_EXCLUDED(mutex_);

  // It leads for so long at most, whatever etcd grants: whoever ends does not wait for an
  // etcd that is away.
  void EndWithin(absl::Duration time);

  // Lets go of it, or looks no more. The second call does nothing.
  void Resign() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  // False when it stops.
  bool WaitFor(absl::Duration time) ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether it leads now.
  absl::StatusOr<bool> Try() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<bool> TakeLead() ABSL_LOCKS_EXCLUDED(mutex_);
  // Until the lease is over, which it says; OK when it stops.
  absl::Status Lead() ABSL_LOCKS_EXCLUDED(mutex_);
  // NotFound: it is over.
  absl::Status Renew() ABSL_LOCKS_EXCLUDED(mutex_);
  void SetLeader(const std::string& leader) ABSL_LOCKS_EXCLUDED(mutex_);
  void SayWhetherEtcdAnswers(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  void LeadUntil(absl::Duration time) { until_ns_ = absl::ToInt64Nanoseconds(time); }

  EtcdClient& etcd_;
  const LeadershipOptions options_;
  const std::string key_;
  const SteadyClock clock_;
  std::atomic<int64_t> until_ns_ = 0;                                  // by the clock
  std::atomic<int64_t> end_ns_ = std::numeric_limits<int64_t>::max();  // likewise
  bool etcd_is_away_ = false;  // and it was said; of the thread

  mutable absl::Mutex mutex_;
  SteadyCondition changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t lease_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t create_revision_ ABSL_GUARDED_BY(mutex_) = 0;
  std::string leader_ ABSL_GUARDED_BY(mutex_);
  absl::Status etcd_status_ ABSL_GUARDED_BY(mutex_) =
      absl::UnavailableError("it has not been asked yet");

  std::thread thread_;  // last: it uses all the others
};

}  // namespace syncline
