// The living workers of a job, by rank: what each has reported, its step, and its
// barrier. A welcomed worker is a member of a committed epoch. An outside worker waits
// until it may join (readmission.h). An awaited worker was a member under a previous
// coordinator, and has not come back yet.
//
//   Workers workers(timeouts.heartbeat_interval);
//   workers.Add(3, {.connection = 7, .name = "gpu7:4711", .heard_at = now});
//   workers.Named(3);              // "worker 3 (gpu7:4711)"
//   workers.Find(3, incarnation);  // null once another process has that rank
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "comm/base/secret_key.h"
#include "server/coordinator/coordinator.h"
#include "server/coordinator/views.h"

namespace syncline {

// A worker as its job sees it.
struct JobWorker {
  ConnectionId connection = 0;
  uint32_t incarnation = 0;
  uint64_t session_key = 0;
  SecretKey key = {};
  std::string name = {};
  bool connected = true;
  bool outside = false;     // waits until it may join (readmission.h)
  bool welcomed = false;    // member of a committed epoch
  uint64_t first_step = 0;  // valid if welcomed
  Heartbeat beat = {};
  absl::Duration heard_at = {};
  absl::Duration disconnected_at = {};
  std::optional<uint64_t> barrier = {};  // the one it is in
  uint64_t next_barrier = 0;  // in its own count: all barriers before this one are over
  uint64_t barriers = 0;      // number of the job's barriers that it knows to be over
  uint64_t epoch = 0;         // last epoch that it was told
  uint64_t left_out = 0;      // steps that were closed without it
  bool is_awaited = false;    // not back yet after a coordinator restart
  std::string codec = {};     // the codec that it chose last
};

class Workers {
 public:
  explicit Workers(absl::Duration heartbeat_interval) : interval_(heartbeat_interval) {}

  bool empty() const { return workers_.empty(); }
  size_t size() const { return workers_.size(); }
  bool contains(uint32_t rank) const { return workers_.contains(rank); }
  auto begin() { return workers_.begin(); }
  auto end() { return workers_.end(); }
  auto begin() const { return workers_.begin(); }
  auto end() const { return workers_.end(); }
  // REQUIRES: contains(rank).
  JobWorker& at(uint32_t rank) { return workers_.at(rank); }
  const JobWorker& at(uint32_t rank) const { return workers_.at(rank); }
  // Return null if no worker has this rank or, in the second form, if another incarnation
  // has it.
  JobWorker* Find(uint32_t rank);
  const JobWorker* Find(uint32_t rank) const;
  JobWorker* Find(uint32_t rank, uint32_t incarnation);
  const JobWorker* Find(uint32_t rank, uint32_t incarnation) const;
  std::string Named(uint32_t rank) const;

  void Add(uint32_t rank, JobWorker worker) { workers_[rank] = std::move(worker); }
  // REQUIRES: contains(rank).
  void Forget(uint32_t rank);
  void ForgetAll();
  // REQUIRES: contains(rank).
  void Hear(uint32_t rank, const Heartbeat& beat, absl::Duration now);

  // ---- Members ----

  bool HasInsiders() const { return CountInsiders("") > 0; }
  // Whether the workers that are not outside are exactly these incarnations.
  bool AreMembers(const std::vector<MemberRecord>& members) const;
  size_t awaited() const;
  // Whether its stream is broken, or some heartbeats are missing.
  bool MayBeDead(const JobWorker& worker, absl::Duration now) const;
  // Fails with FailedPrecondition if the job or some of its servers may end with that
  // worker. `serving` are the hosts that have servers of the job. REQUIRES:
  // contains(rank).
  absl::Status CheckMayLack(uint32_t rank, const std::string& job,
                            const std::set<std::string>& serving) const;

  // ---- Progress ----

  // Lowest step of the members that have been heard, at least the step at which each
  // joined. If there is none, the highest step that former members had reached.
  uint64_t LowestStep() const;
  uint64_t HighestStep() const;
  // Highest step of the members that have made a step. Before its first one, a member
  // reports the step that it joined at.
  uint64_t ReachedStep() const;
  // Notes that the job has reached `step`, which no worker here may know.
  void NoteStep(uint64_t step);
  // Number of pushed values and their bytes, of all incarnations of all workers.
  const CompressionFigures& pushed() const { return pushed_; }
  // Awaited workers count as heard at `awaited_since`.
  std::vector<MemberView> View(absl::Duration now, absl::Duration awaited_since) const;

  // ---- Barriers ----

  // Number of barriers that are over.
  uint64_t barriers() const { return barriers_; }
  // Notes that this number of barriers is over, as a returning worker reports.
  void NoteBarriers(uint64_t barriers);
  // Returns false if that barrier is over already. REQUIRES: contains(rank).
  bool EnterBarrier(uint32_t rank, uint64_t barrier);
  // Ends the barrier if all members are in it. Returns the messages to the members.
  std::vector<ToMember> EndBarrier();
  // Releases members that are in a barrier that is over, because they have not heard of
  // its end. Returns the messages to them.
  std::vector<ToMember> ReleaseThoseLeftBehind();

 private:
  // Number of workers on that host that are not outside. Empty: on all hosts.
  size_t CountInsiders(const std::string& host) const;

  const absl::Duration interval_;
  std::map<uint32_t, JobWorker> workers_;
  uint64_t barriers_ = 0;
  uint64_t last_step_ = 0;  // highest step of former members
  CompressionFigures pushed_ = {};
};

}  // namespace syncline
