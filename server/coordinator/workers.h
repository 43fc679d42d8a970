// The workers of a job that are alive, by rank: what each has said of itself, how far they
// are, and the barrier that they are in. One that was welcomed is a member of a committed
// epoch; one that is outside waits until it may be (readmission.h); one that is awaited was
// a member under an earlier coordinator, and has not come back yet.
//
//   Workers workers(timeouts.heartbeat_interval);
//   workers.Add(3, {.connection = 7, .name = "gpu7:4711", .heard_at = now});
//   workers.Named(3);              // "worker 3 (gpu7:4711)"
//   workers.Find(3, incarnation);  // null once another process has that rank
//
// Thread safety: none; pure, but for what it remembers.
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
  uint64_t first_step = 0;  // once welcomed
  Heartbeat beat = {};
  absl::Duration heard_at = {};
  absl::Duration disconnected_at = {};
  std::optional<uint64_t> barrier = {};  // the one it is in
  uint64_t next_barrier = 0;             // by its count: all before it are over
  uint64_t barriers = 0;                 // of the job that it knows to be over
  uint64_t epoch = 0;                    // the last one that it was told
  uint64_t left_out = 0;                 // steps that were closed without it
  bool is_awaited = false;               // since the coordinator was started anew
  std::string codec = {};                // the last one that it chose
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
  // Null when there is none; the second form: or when another life has its rank.
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

  // ---- Who counts ----

  bool HasInsiders() const { return CountInsiders("") > 0; }
  // Whether those inside are these lives.
  bool AreMembers(const std::vector<MemberRecord>& members) const;
  size_t awaited() const;
  // By its stream, or its silence.
  bool MayBeDead(const JobWorker& worker, absl::Duration now) const;
  // FailedPrecondition: what of that job would end with that worker, when `serving` are the
  // hosts that have servers of it. REQUIRES: contains(rank).
  absl::Status CheckMayLack(uint32_t rank, const std::string& job,
                            const std::set<std::string>& serving) const;

  // ---- How far they are ----

  // Of all that were heard; of those that are gone when there is none. One that has just
  // come is where it begins.
  uint64_t LowestStep() const;
  uint64_t HighestStep() const;
  // Of those that have stepped. Before that one waits for the step that it joined at.
  uint64_t ReachedStep() const;
  // Steps were made that no worker here may know of.
  void NoteStep(uint64_t step);
  // Values that were pushed, and their bytes, of all lives of all workers.
  const CompressionFigures& pushed() const { return pushed_; }
  // Those that are awaited were heard at `awaited_since`.
  std::vector<MemberView> View(absl::Duration now, absl::Duration awaited_since) const;

  // ---- Barriers ----

  // That are over.
  uint64_t barriers() const { return barriers_; }
  // So many are, as a worker knows that comes back.
  void NoteBarriers(uint64_t barriers);
  // False when that one is over already. REQUIRES: contains(rank).
  bool EnterBarrier(uint32_t rank, uint64_t barrier);
  // If all members that are alive are in one, it is over. To be told to each of them.
  std::vector<ToMember> EndBarrier();
  // Everybody was in a barrier that is over; anyone who does not know of that is in it still.
  std::vector<ToMember> ReleaseThoseLeftBehind();

 private:
  // On that host; empty: on all.
  size_t CountInsiders(const std::string& host) const;

  const absl::Duration interval_;
  std::map<uint32_t, JobWorker> workers_;
  uint64_t barriers_ = 0;
  uint64_t last_step_ = 0;  // of those who are gone
  CompressionFigures pushed_ = {};
};

}  // namespace syncline
