// The oracle of the simulation. It computes what the weights must be from the accepted
// updates alone.
//
// Workers record every gradient that they push. Shards record which contributions each
// step of each block consumed. From these two the reference computes the weights in one
// process, tensor by tensor in plain loops, without shards, tiles, messages or epochs. It
// also checks that each contribution counts exactly once: a shard must not consume
// anything that was not pushed, or twice, or out of order.
//
// Thread safety: none.
#pragma once

#include <bit>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "comm/base/tiling.h"
#include "server/coordinator/job_spec.h"
#include "server/shard/shard.h"

namespace syncline::sim {

// Compares bits, but -0 equals 0: a delta without a value may keep -0 or make it 0.
inline bool SameBits(float a, float b) {
  return a == b || std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

// One incarnation of a worker at one step.
struct ContributionKey {
  uint32_t rank = 0;
  uint32_t incarnation = 0;
  uint64_t step = 0;

  bool operator<(const ContributionKey& other) const {
    return std::tie(rank, incarnation, step) <
           std::tie(other.rank, other.incarnation, other.step);
  }
};

class Reference {
 public:
  explicit Reference(const JobSpec& job);

  // Record what a seeder sends for a block, and what the shard holds after it accepted a
  // seed. The shard may choose any seeder, but must hold one seeder's values completely.
  void SeedSent(uint32_t block, std::span<const float> values);
  void SeedHeld(uint32_t block, std::span<const float> values);
  struct Push {
    std::vector<float> gradient = {};
    // Versions of the weights that it was computed from, by block.
    std::map<uint32_t, uint64_t> versions = {};
    uint32_t samples = 0;
    float loss_scale = 1;
    float rate_factor = 1;
    bool parting = false;  // error feedback of a worker that leaves, without a gradient
    // The encoded values, if they do not follow from the gradient (push_codec=auto).
    std::vector<float> sent = {};
  };
  void Pushed(const ContributionKey& key, uint32_t tensor, Push push);
  // Records the encoded values of a push from `first_element` on. A repetition must have
  // the same values.
  void Sent(const ContributionKey& key, uint32_t tensor, uint64_t first_element,
            std::span<const float> values);
  // Checks how far a worker that is about to push this step is ahead. It may be at most
  // `staleness` steps ahead of the last complete step. `staleness` is the largest value
  // that the worker was told since it pushed the previous step.
  void Computed(uint32_t rank, uint32_t tensor, uint64_t step, uint64_t staleness);
  // The servers confirmed that they hold everything that this worker pushed at this step.
  // It must count, whatever happens to the worker. Only for workers that leave: if a
  // worker dies, its contributions to incomplete steps are lost.
  void Promised(const ContributionKey& key) { promised_.push_back(key); }
  // A shard acknowledged this worker's contribution to this block.
  void Acknowledged(const ContributionKey& key, uint32_t block) {
    acknowledged_.emplace_back(key, block);
  }
  // With a quorum: this worker knows that its push at this step does not count.
  void Late(const ContributionKey& key) { late_.insert(key); }
  // This incarnation stayed to the end: all its acknowledged contributions must count.
  void CheckAcknowledged(uint32_t rank, uint32_t incarnation);
  // Records an update of a shard, and a violation if it is not allowed.
  void Applied(const ShardApplied& applied);

  // Averaged weights or an array of optimizer state, which a worker fetched before it
  // pushed this step.
  struct Pull {
    uint32_t rank = 0;
    uint64_t step = 0;
    uint32_t tensor = 0;
    std::optional<uint32_t> array = {};  // empty: averaged weights
    absl::Status status = {};
    std::vector<float> values = {};
  };
  void Pulled(Pull pull);

  // Servers were told of new settings with this epoch, which hold from step `from` on.
  void Changed(uint64_t epoch, const TrainingSettings& training, uint64_t from);

  // Returns the staleness that servers were told for this epoch.
  uint64_t StalenessIn(uint64_t epoch) const;

  // Check that no worker leaves a barrier before all are in it. A worker that begins
  // after the first barrier (its welcome was lost with the coordinator) numbers barriers
  // from its own first one. Then nothing is checked any more.
  void Began(uint32_t rank) { begun_.insert(rank); }
  void Entered(uint32_t rank, uint64_t barrier) { in_barrier_[barrier].insert(rank); }
  void Released(uint32_t rank, uint64_t barrier, size_t workers);

  // A server came back with this version of a block. Its later updates are undone, and no
  // worker may have seen them. `held` is the highest version that a worker has.
  void RolledBack(uint32_t block, uint64_t version, uint64_t held);
  // Records another violation. Only the first one is kept.
  void Violate(std::string what);

  // Computes all tensors after `steps` steps from the beginning. Also finds steps that
  // were skipped without a reason, or not skipped although they should have been.
  struct Model {
    std::vector<std::vector<float>> weights = {};
    std::vector<std::vector<float>> views = {};  // the weights as workers hold them
  };
  Model After(uint64_t steps);

  uint64_t version(uint32_t block) const { return applied_[block].size(); }
  const std::vector<BlockRange>& blocks() const { return blocks_; }
  // Returns the first violation; empty: there was none.
  const std::string& violation() const { return violation_; }

 private:
  friend class Replay;
  void CheckPromises();
  bool HasPartedOnce(uint32_t block, const ContributionKey& key) const;
  // Checks a job with a quorum: a contribution is part of a step with all its blocks or
  // with none.
  void CheckSets();
  // Returns the contributor's own step, which in mode asp differs from the shard's.
  static uint64_t StepOf(const ShardApplied& applied) {
    return applied.arrival ? applied.arrival->step : applied.step;
  }
  void CheckArrival(const ShardApplied& applied);
  bool IsCounted(uint32_t block, const ContributionKey& key) const;

  const JobSpec job_;
  const std::vector<BlockRange> blocks_;
  std::vector<std::vector<std::vector<float>>> seeds_sent_;
  std::vector<std::vector<float>> seeds_;
  std::vector<std::vector<ShardApplied>> applied_;
  std::map<std::pair<ContributionKey, uint32_t>, Push> pushes_;  // by tensor
  std::vector<ContributionKey> promised_;
  std::set<ContributionKey> late_;
  std::vector<std::pair<ContributionKey, uint32_t>> acknowledged_;
  // Mode asp: the last step that was counted, by block and incarnation.
  std::map<std::pair<uint32_t, uint32_t>, uint64_t> arrived_;
  std::map<uint64_t, std::vector<Pull>> pulls_;        // by step
  std::map<uint64_t, std::set<uint32_t>> in_barrier_;  // ranks, by barrier
  std::set<uint32_t> begun_;                           // ranks
  bool barriers_are_even_ = true;  // all workers began before the first barrier ended
  // By epoch: the step from which settings hold, and the settings.
  std::map<uint64_t, std::pair<uint64_t, TrainingSettings>> changes_;
  std::string violation_;
};

}  // namespace syncline::sim
