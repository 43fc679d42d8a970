// The checkpoints ("cuts") that the servers of a job are writing. For each, Cuts knows
// which servers have not written it yet and the loss scale of its step. It also keeps the
// results of the last ones. A job has at most one cut at each step.
//
// The job decides when a cut begins, and reports how it ended (job_checkpoints.cc).
//
// Thread safety: none.
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

// Returns the error of a cut that was under way when the coordinator was restarted.
absl::Status GivenUpByRestart();

struct Cut {
  // Servers that have not written it yet. Empty: the checkpoint keeper has it.
  std::set<uint32_t> unwritten = {};
  // The first error of a server or of the coordinator.
  absl::Status status = {};
  std::vector<CheckpointFile> files = {};
  TrainingSettings training = {};            // in force at its step
  absl::Duration took = {};                  // by the slowest server
  std::optional<ScalingState> scaling = {};  // at its step, once decided
  std::optional<absl::Duration> since = {};  // time of the first Late() that saw it
};

class Cuts {
 public:
  // Time that servers have to write a cut.
  static constexpr absl::Duration kLimit = absl::Minutes(30);

  // `decisions` are those of the job, and must outlive this object.
  explicit Cuts(const DecisionMaker& decisions) : decisions_(decisions) {}

  bool empty() const { return open_.empty(); }
  bool contains(uint64_t step) const { return open_.contains(step); }
  // Whether it was written, or failed, recently.
  bool HasEnded(uint64_t step) const { return ended_.contains(step); }
  // Whether a previous coordinator may have begun it, and received the answers of
  // servers.
  bool IsLost(uint64_t step) const { return step <= lost_; }
  // Step of the last cut that this coordinator or a previous one has begun.
  uint64_t last() const { return std::max(last_, lost_); }

  // REQUIRES: !contains(step).
  void Begin(uint64_t step, std::set<uint32_t> servers);
  // Returns the oldest cut if too many are open, but not the one at `step`. A cut that
  // some server never answers must not block all later ones.
  std::optional<uint64_t> OneTooMany(uint64_t step) const;
  // Returns the cuts that are open for longer than kLimit, each with a server that has
  // not written it.
  std::map<uint64_t, uint32_t> Late(absl::Duration now);
  // Returns the steps of the cuts that this server has not written yet.
  std::vector<uint64_t> AwaitedOf(uint32_t server) const;
  // Returns the first open cut if it IsLost; the job gives these up.
  std::optional<uint64_t> FirstLost() const;
  // Drops the cuts after `step`, which no server will write. Returns the steps of the
  // others.
  std::vector<uint64_t> KeepUpTo(uint64_t step);
  void Clear() { open_.clear(); }

  // Notes that a step was decided. `is_scheduled`: servers write a cut there without an
  // order, so its loss scale must be kept.
  void NoteDecided(bool is_scheduled);
  // Allows a new cut at a step where one has failed: the last step of a job.
  void TryAgain(uint64_t step) { ended_.erase(step); }
  // Uses the present loss scale, because no more steps are decided. REQUIRES:
  // contains(step).
  void UseLatestScaling(uint64_t step) { open_.at(step).scaling = decisions_.scaling(); }

  // Returns the cut if this was the last answer for it, otherwise null. REQUIRES:
  // contains(written.step).
  const Cut* Add(uint32_t server, const CheckpointWritten& written);
  // Remove the cut, and note its result. Pointers to it become invalid. REQUIRES:
  // contains(name.step).
  void Finish(const CheckpointName& name, absl::Duration now);
  void Fail(const CheckpointName& name, const absl::Status& status);

  // The results. `is_under_way` is only a part of it: the job adds what it knows.
  CheckpointView View(absl::Duration now) const;
  const CheckpointView& saved() const { return saved_; }
  void set_resumed_from(std::string name) { saved_.resumed_from = std::move(name); }

  // Restores the state after a restart: the last cut that a previous coordinator began,
  // and its View().
  void Restore(uint64_t last, const CheckpointView& saved);
  // Notes that a returning server has copied its blocks at that step.
  void NoteLost(uint64_t step) { lost_ = std::max(lost_, step); }
  // Notes that a previous coordinator has made the decisions so far. Their loss scales
  // are unknown.
  void NoteResumed() { first_known_ = decisions_.decided(); }

 private:
  std::optional<ScalingState> ScalingAt(uint64_t step) const;
  Cut Take(uint64_t step);

  const DecisionMaker& decisions_;
  std::map<uint64_t, Cut> open_;  // by step
  std::set<uint64_t> ended_;      // of the last cuts that were written or failed
  std::map<uint64_t, ScalingState> scalings_;  // at steps that may have a cut
  uint64_t last_ = 0;                          // last step that was begun here
  uint64_t lost_ = 0;                          // highest step that IsLost
  uint64_t first_known_ = 0;                   // first step whose loss scale may be known
  CheckpointView saved_;
  absl::Duration saved_at_ = {};
};

}  // namespace syncline
