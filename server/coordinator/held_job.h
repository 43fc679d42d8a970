// What a server remembers of a job for a restarted coordinator: its epochs, the last
// decision, and the statistics that no decision has answered. For jobs with a quorum it
// also remembers the last closed step and the reports that no closing has answered.
// Messages to and from the old coordinator may be lost, even if they were acknowledged.
// The server repeats exactly this state when it comes back.
//
//   held.Prepare(epoch); held.Commit(epoch); held.Report(figures); held.Decide(decision);
//   hello.held.push_back(held.Describe(job));
//   for (const BlockFigures& figures : held.undecided()) ...
//   for (const StepHeld& step : held.unclosed()) ...
//
// Thread safety: none.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "server/coordinator/coordinator.h"

namespace syncline {

class JobMemory {
 public:
  // The server was told to prepare this epoch.
  void Prepare(uint64_t epoch) { prepared_ = std::max(prepared_, epoch); }
  // All engines of the server have committed this epoch.
  void Commit(uint64_t epoch) { committed_ = std::max(committed_, epoch); }
  // A checkpoint of this step was ordered or written.
  void Cut(uint64_t step) { cut_ = std::max(cut_, step); }
  void Report(const BlockFigures& figures) {
    if (decided_ && figures.step <= decided_->step) return;
    undecided_[{figures.step, figures.block}] = figures;
  }
  void Decide(const StepDecision& decision) {
    if (decided_ && decision.step <= decided_->step) return;
    decided_ = decision;
    undecided_.erase(undecided_.begin(), undecided_.lower_bound({decision.step + 1, 0}));
  }

  // ---- Jobs with a quorum ----
  void Hold(const StepHeld& held) {
    if (closed_ && held.step <= closed_->step) return;
    held_[held.shard] = held;
  }
  void Close(const StepClosed& closed) {
    if (closed_ && closed.step <= closed_->step) return;
    closed_ = closed;
    std::erase_if(held_, [&](const auto& one) { return one.second.step <= closed.step; });
  }

  HeldJob Describe(uint32_t job) const {
    return {.job = job,
            .prepared = prepared_,
            .committed = committed_,
            .cut = cut_,
            .decided = decided_,
            .closed = closed_};
  }
  // Returns the reported statistics that have no decision, by step and block.
  std::vector<BlockFigures> undecided() const {
    std::vector<BlockFigures> all;
    for (const auto& [key, figures] : undecided_) all.push_back(figures);
    return all;
  }

  // Returns the reports of steps that are not closed.
  std::vector<StepHeld> unclosed() const {
    std::vector<StepHeld> all;
    for (const auto& [shard, held] : held_) all.push_back(held);
    return all;
  }

 private:
  uint64_t prepared_ = 0;
  uint64_t committed_ = 0;
  uint64_t cut_ = 0;
  std::optional<StepDecision> decided_;
  std::map<std::pair<uint64_t, uint32_t>, BlockFigures> undecided_;
  std::optional<StepClosed> closed_;
  std::map<uint32_t, StepHeld> held_;  // by shard
};

}  // namespace syncline
