// The oracle of the simulation: what the weights must be, from the accepted updates
// alone.
//
// Workers write down every gradient they push; shards write down which contributions each
// step of each block consumed. From these two the reference computes the weights in one
// process, tensor by tensor in plain loops, without shards, tiles, messages or epochs. It
// also is the judge of exactly-once: nothing may be consumed that was not pushed, or
// twice, or out of order.
#pragma once

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

// One life of one worker at one step.
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

  // What a seeder sends for a block, and what the shard holds after it took a seed: which
  // seeder wins is the shard's business, but it must be one of them, whole.
  void SeedSent(uint32_t block, std::span<const float> values);
  void SeedHeld(uint32_t block, std::span<const float> values);
  struct Push {
    std::vector<float> gradient = {};
    std::map<uint32_t, uint64_t> versions = {};  // that it was computed from, by block
    uint32_t samples = 0;
    float loss_scale = 1;
    float rate_factor = 1;
    bool parting = false;          // what compression had kept; without a gradient
    std::vector<float> sent = {};  // as it was encoded; where that is not in the gradient
  };
  void Pushed(const ContributionKey& key, uint32_t tensor, Push push);
  // What was encoded of it, from that element on. The same, however often it is sent.
  void Sent(const ContributionKey& key, uint32_t tensor, uint64_t first_element,
            std::span<const float> values);
  // A worker is about to push that step: it may be ahead of what all have contributed to by
  // no more than `staleness`, the largest that it was told of since it pushed the one before.
  void Computed(uint32_t rank, uint32_t tensor, uint64_t step, uint64_t staleness);
  // The servers said that they hold all of what this worker pushed at that step: it must
  // be counted, whatever happens to the worker. Only for workers that leave; those that
  // die take with them what was not complete.
  void Promised(const ContributionKey& key) { promised_.push_back(key); }
  // A shard told this worker that it holds its contribution to this block.
  void Acknowledged(const ContributionKey& key, uint32_t block) {
    acknowledged_.emplace_back(key, block);
  }
  // With a quorum: this worker was told, or knows, that what it pushed at that step does not
  // count.
  void Late(const ContributionKey& key) { late_.insert(key); }
  // This life stayed to the end: all that was acknowledged to it must be counted.
  void CheckAcknowledged(uint32_t rank, uint32_t incarnation);
  // Notes what a shard did, and the first violation if it is one.
  void Applied(const ShardApplied& applied);

  // Averaged weights, or an array of the optimizer's state, as a worker got them before it
  // pushed that step.
  struct Pull {
    uint32_t rank = 0;
    uint64_t step = 0;
    uint32_t tensor = 0;
    std::optional<uint32_t> array = {};  // nothing: averaged weights
    absl::Status status = {};
    std::vector<float> values = {};
  };
  void Pulled(Pull pull);

  // Servers were told of new settings with that epoch, from a step on.
  void Changed(uint64_t epoch, const TrainingSettings& training, uint64_t from);

  // How far ahead workers may be that were told of that epoch, by what servers were told.
  uint64_t StalenessIn(uint64_t epoch) const;

  // Nobody leaves a barrier before all are in it. One who begins later than that, as its
  // welcome died with the coordinator, counts from its own first one; then nothing is judged.
  void Began(uint32_t rank) { begun_.insert(rank); }
  void Entered(uint32_t rank, uint64_t barrier) { in_barrier_[barrier].insert(rank); }
  void Released(uint32_t rank, uint64_t barrier, size_t workers);

  // A server came back with that version of a block: what it did since is undone, and was
  // told to nobody. `held`: the highest that a worker has.
  void RolledBack(uint32_t block, uint64_t version, uint64_t held);
  // Something else did not hold.
  void Violate(std::string what);

  // All tensors after `steps` steps, computed from scratch. Also finds steps that were
  // skipped without reason, or not skipped.
  struct Model {
    std::vector<std::vector<float>> weights = {};
    std::vector<std::vector<float>> views = {};  // as workers hold them
  };
  Model After(uint64_t steps);

  uint64_t version(uint32_t block) const { return applied_[block].size(); }
  const std::vector<BlockRange>& blocks() const { return blocks_; }
  // Empty while all is well.
  const std::string& violation() const { return violation_; }

 private:
  friend class Replay;
  void CheckPromises();
  bool HasPartedOnce(uint32_t block, const ContributionKey& key) const;
  // With a quorum: a contribution is part of a step with all its blocks, or with none.
  void CheckSets();
  // The contributor's own step, of what a shard applied.
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
  std::map<std::pair<uint32_t, uint32_t>, uint64_t> arrived_;  // by block and life
  std::map<uint64_t, std::vector<Pull>> pulls_;                // by step
  std::map<uint64_t, std::set<uint32_t>> in_barrier_;          // ranks, by barrier
  std::set<uint32_t> begun_;                                   // ranks
  bool barriers_are_even_ = true;  // all began before the first was over
  // By epoch: settings and the step that they hold from.
  std::map<uint64_t, std::pair<uint64_t, TrainingSettings>> changes_;
  std::string violation_;
};

}  // namespace syncline::sim
