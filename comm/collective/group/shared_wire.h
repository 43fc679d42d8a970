// A wire between the ranks of one host: rings in shared memory, written and read in
// place.
//
// A separate thread advances the heartbeat, by which other ranks distinguish a rank that
// computes from one that was stopped.
#pragma once

#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "comm/base/env.h"
#include "comm/base/steady_condition.h"
#include "comm/collective/group/shared_memory.h"
#include "comm/collective/group/wire.h"

namespace syncline::collective {

class SharedWire final : public Wire {
 public:
  // `peers`: the other ranks' segments; null for `rank` and for ranks on other hosts. A
  // rank whose heartbeat does not change for `failure_timeout` counts as hung.
  SharedWire(int rank, std::unique_ptr<SharedSegment> own,
             std::vector<std::unique_ptr<SharedSegment>> peers,
             absl::Duration failure_timeout);
  // Announces that this rank leaves, to ranks that still wait for it.
  ~SharedWire() override;

  const std::vector<Lane*>& lanes() override { return lanes_[0]; }
  const std::vector<Lane*>& direct_lanes() override { return lanes_[1]; }
  void Enter(const CallHeader& header) override;
  void PrepareToSleep() override;
  void Sleep(absl::Duration timeout) override;
  void Stay() override;
  void Wake() override { own_->RingAnyway(); }
  absl::Status Check(const std::vector<int>& ranks, const CallHeader* header) override;
  void Report(const absl::Status& status) override;
  std::vector<int> Behind(uint64_t sequence) const override;
  SharedWire* board() override;

  SharedHeader& own() const { return own_->header(); }
  // Returns null for this rank.
  const SharedSegment* peer(int rank) const {
    return peers_[static_cast<size_t>(rank)].get();
  }
  void RingAll() const;
  int rank() const { return rank_; }
  int ranks() const { return static_cast<int>(peers_.size()); }

 private:
  class SharedLane;
  absl::Status CheckReports();
  absl::Status CheckAlive(int rank);
  absl::Status CheckSame(int rank, const CallHeader& header) const;
  void Beat() ABSL_LOCKS_EXCLUDED(mutex_);

  const int rank_;
  const absl::Duration failure_timeout_;
  const SteadyClock clock_;
  std::unique_ptr<SharedSegment> own_;
  std::vector<std::unique_ptr<SharedSegment>> peers_;
  std::vector<std::unique_ptr<Lane>> owned_lanes_;
  std::vector<Lane*> lanes_[2];
  std::vector<Liveness> seen_;
  uint32_t bell_ = 0;  // before the last check for data

  absl::Mutex mutex_;
  SteadyCondition stopped_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread beating_;
};

}  // namespace syncline::collective
