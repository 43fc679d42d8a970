// Decides which of several coordinators leads: the one that created the leader's key in
// etcd, for as long as its lease lasts.
//
//   Leadership leadership(*etcd, {.address = "10.0.0.1:7070", .ttl = absl::Seconds(5)});
//   ... until leadership.leads() ...
//   EtcdStore store(*etcd, {leadership.guard(), [&] { return leadership.time_left(); }});
//   ... until on_lost ...
//   leadership.Resign();  // the next coordinator leads at once
//
// A leader counts its time from before its request to etcd, by its own monotonic clock,
// and counts less time than etcd does. When its time is over, no other coordinator leads
// yet. It never leads again after that; restart the process. In addition, everything that
// it stores is guarded (etcd_store.h).
//
// Thread safety: any thread. Has one thread of its own, which calls on_lost at most once.
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
  std::string address;  // of this coordinator; others report it
  absl::Duration ttl;   // of the lease, in whole seconds
  // How often a standby checks whether there is a leader.
  absl::Duration look_every = absl::Milliseconds(500);
  Logger log = {};
  // Called with Failure::kRetryable when this coordinator has lost the lead.
  std::function<void(const absl::Status&)> on_lost = [](const absl::Status&) {};
};

class Leadership {
 public:
  // Returns half the failure timeout in whole seconds, but at least 5 s. So an election
  // in etcd, or a disk that is slow for a moment, does not end a leadership.
  static absl::Duration TtlFor(const Timeouts& timeouts);

  // Begins to check at once. `etcd` must outlive this object.
  Leadership(EtcdClient& etcd, LeadershipOptions options);
  ~Leadership();  // resigns

  bool leads() const { return time_left() > absl::ZeroDuration(); }
  // Returns the time for which it certainly still leads. Zero if it does not lead.
  absl::Duration time_left() const;
  // REQUIRES: it leads, or has led.
  EtcdGuard guard() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the address of the leader, as far as known. Empty: there is no leader.
  std::string leader() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the outcome of the last request to etcd. Unavailable before the first answer.
  absl::Status etcd_status() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Ends the leadership after this time at the latest, even if etcd would grant more. A
  // process that ends then does not wait for an unreachable etcd.
  void EndWithin(absl::Duration time);

  // Gives up the lead, or stops to check for it. Further calls have no effect.
  void Resign() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns false if it must stop.
  bool WaitFor(absl::Duration time) ABSL_LOCKS_EXCLUDED(mutex_);
  // Checks for a leader, and tries to become one. Returns whether it leads now.
  absl::StatusOr<bool> Try() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<bool> TakeLead() ABSL_LOCKS_EXCLUDED(mutex_);
  // Renews the lease until the lead is lost, and returns the reason. Returns OK if it
  // must stop, or if the time of EndWithin is over.
  absl::Status Lead() ABSL_LOCKS_EXCLUDED(mutex_);
  // Fails with NotFound if the leadership has ended.
  absl::Status Renew() ABSL_LOCKS_EXCLUDED(mutex_);
  void SetLeader(const std::string& leader) ABSL_LOCKS_EXCLUDED(mutex_);
  void SayWhetherEtcdAnswers(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  void LeadUntil(absl::Duration time) { until_ns_ = absl::ToInt64Nanoseconds(time); }

  EtcdClient& etcd_;
  const LeadershipOptions options_;
  const std::string key_;
  const SteadyClock clock_;
  std::atomic<int64_t> until_ns_ = 0;                                  // by clock_
  std::atomic<int64_t> end_ns_ = std::numeric_limits<int64_t>::max();  // by clock_
  bool etcd_is_away_ = false;  // used by the thread only; it was logged

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
