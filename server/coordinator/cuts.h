// The checkpoints that a job's servers are writing: for whom each waits, the loss scale
// that belongs to it, and what came of the last ones. A job has at most one at a step.
//
// When one begins and what is said of its end is the job's (job_checkpoints.cc).
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/checkpoint/manifest.h"
#include "server/coordinator/coordinator.h"
#include "server/coordinator/decision.h"
#include "server/coordinator/views.h"

namespace syncline {

// Of a cut that was under way when the coordinator was started anew.
absl::Status GivenUpByRestart();

struct Cut {
  std::set<uint32_t> unwritten = {};  // servers; none: it is with the keeper
  absl::Status status = {};           // the first error of a server, or ours
  std::vector<CheckpointFile> files = {};
  TrainingSettings training = {};            // that hold at its step
  absl::Duration took = {};                  // the slowest server
  std::optional<ScalingState> scaling = {};  // at its step, once that is decided
  std::optional<absl::Duration> since = {};  // the first look that saw it
};

class Cuts {
 public:
  // So long may servers take for one.
  static constexpr absl::Duration kLimit = absl::Minutes(30);

  // `decisions` are the job's, and outlive this.
  explicit Cuts(const DecisionMaker& decisions) : decisions_(decisions) {}

  bool empty() const { return open_.empty(); }
  bool contains(uint64_t step) const { return open_.contains(step); }
  // It was written or failed, lately.
  bool HasEnded(uint64_t step) const { return ended_.contains(step); }
  // Servers may have written it, and said so to a coordinator that is gone.
  bool IsLost(uint64_t step) const { return step <= lost_; }
  // The last that was begun, under this coordinator or one before it.
  uint64_t last() const { return std::max(last_, lost_); }

  // REQUIRES: none is open at that step.
  void Begin(uint64_t step, std::set<uint32_t> servers);
  // The oldest when there are too many, but not that of `step`: one that some server never
  // answers must not stand in the way of all later ones.
  std::optional<uint64_t> OneTooMany(uint64_t step) const;
  // Those that servers have had too long for, with one such server.
  std::map<uint64_t, uint32_t> Late(absl::Duration now);
  // Those that this server has still to write.
  std::vector<uint64_t> AwaitedOf(uint32_t server) const;
  // The first one that IsLost, while servers still say what they had written.
  std::optional<uint64_t> FirstLost() const;
  // Those of later steps wait in vain. The steps of the others.
  std::vector<uint64_t> KeepUpTo(uint64_t step);
  void Clear() { open_.clear(); }

  // A step has been decided; `is_scheduled`: servers will write it without an order.
  void NoteDecided(bool is_scheduled);
  // One that failed is written again, at the end of the job.
  void TryAgain(uint64_t step) { ended_.erase(step); }
  // Nothing is decided any more. REQUIRES: contains(step).
  void UseLatestScaling(uint64_t step) { open_.at(step).scaling = decisions_.scaling(); }

  // The cut once all servers have written it, or could not. REQUIRES: contains(step).
  const Cut* Add(uint32_t server, const CheckpointWritten& written);
  // It is complete, or is not to be had: a Cut* of it is no more. REQUIRES:
  // contains(name.step).
  void Finish(const CheckpointName& name, absl::Duration now);
  void Fail(const CheckpointName& name, const absl::Status& status);

  // What came of them. The job knows more of `is_under_way`.
  CheckpointView View(absl::Duration now) const;
  const CheckpointView& saved() const { return saved_; }
  void set_resumed_from(std::string name) { saved_.resumed_from = std::move(name); }

  // After a restart: the last one that a coordinator before this one began, and View() then.
  void Restore(uint64_t last, const CheckpointView& saved);
  // A server that is back has copied its blocks at that step.
  void NoteLost(uint64_t step) { lost_ = std::max(lost_, step); }
  // What was decided so far was decided elsewhere: earlier loss scales are unknown.
  void NoteResumed() { first_known_ = decisions_.decided(); }

 private:
  std::optional<ScalingState> ScalingAt(uint64_t step) const;
  Cut Take(uint64_t step);

  const DecisionMaker& decisions_;
  std::map<uint64_t, Cut> open_;  // by step
  std::set<uint64_t> ended_;      // the last steps that were written, or failed
  std::map<uint64_t, ScalingState> scalings_;  // at steps that may be cut
  uint64_t last_ = 0;                          // that was begun here
  uint64_t lost_ = 0;                          // the highest one that IsLost
  uint64_t first_known_ = 0;  // step of which the loss scale may be known
  CheckpointView saved_;
  absl::Duration saved_at_ = {};
};

}  // namespace syncline
