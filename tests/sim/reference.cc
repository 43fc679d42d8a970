#include "tests/sim/reference.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/replay.h"

namespace syncline::sim {

Reference::Reference(const JobSpec& job)
    : job_(job),
      blocks_(job.Blocks()),
      seeds_sent_(blocks_.size()),
      seeds_(blocks_.size()),
      applied_(blocks_.size()) {}

void Reference::Violate(std::string what) {
  if (violation_.empty()) violation_ = std::move(what);
}

void Reference::SeedSent(uint32_t block, std::span<const float> values) {
  seeds_sent_[block].emplace_back(values.begin(), values.end());
}

void Reference::SeedHeld(uint32_t block, std::span<const float> values) {
  std::vector<float> held(values.begin(), values.end());
  const auto& sent = seeds_sent_[block];
  if (std::find(sent.begin(), sent.end(), held) == sent.end()) {
    Violate(absl::StrCat("block ", block, " holds initial values that no seeder sent"));
  }
  seeds_[block] = std::move(held);
}

void Reference::RolledBack(uint32_t block, uint64_t version, uint64_t held) {
  if (held > version) {
    Violate(absl::StrCat("block ", block, " came back at version ", version,
                         ", and a worker has ", held));
  }
  if (applied_[block].size() < version) {
    return Violate(absl::StrCat("block ", block, " came back at version ", version,
                                ", which it never had"));
  }
  applied_[block].resize(version);
}

void Reference::Pushed(const ContributionKey& key, uint32_t tensor, Push push) {
  const auto [place, is_new] = pushes_.try_emplace({key, tensor});
  if (!is_new) {
    return Violate(
        absl::StrCat("worker ", key.rank, " pushed step ", key.step, " twice"));
  }
  place->second = std::move(push);
}

void Reference::Sent(const ContributionKey& key, uint32_t tensor, uint64_t first_element,
                     std::span<const float> values) {
  std::vector<float>& sent = pushes_.at({key, tensor}).sent;
  sent.resize(job_.tensors[tensor].elements(), std::numeric_limits<float>::quiet_NaN());
  for (size_t i = 0; i < values.size(); ++i) {
    float& one = sent[first_element + i];
    const bool is_other = !std::isnan(one) && one != values[i];
    if (is_other) {
      Violate(absl::StrCat("worker ", key.rank, " sent step ", key.step,
                           " again with other values"));
    }
    one = values[i];
  }
}

// Keeps only answers that must be of this step. A worker that was dropped may be answered
// later, and so may all workers in modes that continue without one.
void Reference::Pulled(Pull pull) {
  if (job_.training.sync().skips_versions()) return;
  for (uint32_t block = 0; block < blocks_.size(); ++block) {
    const bool is_trained = !job_.tensors[pull.tensor].group.frozen;
    const bool is_its = blocks_[block].tensor == pull.tensor;
    if (is_its && is_trained && version(block) != pull.step) return;
  }
  pulls_[pull.step].push_back(std::move(pull));
}

void Reference::Changed(uint64_t epoch, const TrainingSettings& training, uint64_t from) {
  const auto [change, is_new] = changes_.try_emplace(epoch, from, training);
  if (is_new || change->second == std::pair(from, training)) return;
  Violate(absl::StrCat("servers heard of different settings in epoch ", epoch));
}

void Reference::Released(uint32_t rank, uint64_t barrier, size_t workers) {
  barriers_are_even_ = barriers_are_even_ && begun_.size() == workers;
  if (!barriers_are_even_ || in_barrier_[barrier].size() == workers) return;
  Violate(absl::StrCat("rank ", rank, " left barrier ", barrier, " while ",
                       in_barrier_[barrier].size(), " of ", workers, " were in it"));
}

uint64_t Reference::StalenessIn(uint64_t epoch) const {
  const auto later = changes_.upper_bound(epoch);
  if (later == changes_.begin()) return job_.training.sync().staleness;
  return std::prev(later)->second.second.sync().staleness;
}

void Reference::Computed(uint32_t rank, uint32_t tensor, uint64_t step,
                         uint64_t staleness) {
  const SyncMode mode = job_.training.sync();
  for (uint32_t block = 0; block < blocks_.size() && !mode.is_async(); ++block) {
    if (blocks_[block].tensor != tensor) continue;
    if (step <= version(block) + staleness) continue;
    Violate(absl::StrCat("rank ", rank, " computed step ", step, " while block ", block,
                         " was at ", version(block), ", ", staleness,
                         " steps ahead are allowed"));
  }
}

void Reference::Applied(const ShardApplied& applied) {
  auto& history = applied_[applied.block];
  if (applied.step != history.size()) {
    Violate(absl::StrCat("block ", applied.block, " applied step ", applied.step,
                         " after ", history.size(), " steps"));
  }
  std::set<uint32_t> ranks;
  std::set<uint32_t> incarnations;
  for (const auto& contributor : applied.contributors) {
    const ContributionKey key{contributor.rank, contributor.incarnation, StepOf(applied)};
    const bool is_new_life = incarnations.insert(contributor.incarnation).second;
    // With aggregation on arrival, a contribution stays if its sender is replaced.
    const bool may_repeat =
        contributor.parting || job_.training.aggregation == Aggregation::kArrival;
    const bool is_new_rank = may_repeat || ranks.insert(contributor.rank).second;
    if (!is_new_life || !is_new_rank) {
      Violate(absl::StrCat("block ", applied.block, " counted rank ", contributor.rank,
                           " twice at step ", applied.step));
    }
    if (!pushes_.contains({key, blocks_[applied.block].tensor})) {
      Violate(absl::StrCat("block ", applied.block, " counted what rank ",
                           contributor.rank, " never pushed at step ", applied.step));
    }
  }
  if (job_.training.sync().is_async()) CheckArrival(applied);
  history.push_back(applied);
  const uint64_t first = applied.step - applied.step % job_.training.accumulate_steps;
  const bool has_some = std::any_of(
      history.begin() + static_cast<ptrdiff_t>(std::min(first, history.size())),
      history.end(), [](const ShardApplied& one) { return !one.contributors.empty(); });
  if (!has_some && !applied.skipped)
    Violate(absl::StrCat("block ", applied.block, " stepped without contributions"));
}

// Checks an update in mode asp: it has at most one contribution, and those of each
// incarnation come in order.
void Reference::CheckArrival(const ShardApplied& applied) {
  const bool is_one = applied.arrival && applied.contributors.size() <= 1;
  if (!is_one) {
    return Violate(absl::StrCat("block ", applied.block, " mixed contributions"));
  }
  for (const auto& contributor : applied.contributors) {
    const uint64_t step = applied.arrival->step;
    const auto [last, is_first] =
        arrived_.try_emplace({applied.block, contributor.incarnation}, step);
    if (!is_first && step <= last->second) {
      Violate(absl::StrCat("block ", applied.block, " counted step ", step, " of rank ",
                           contributor.rank, " after ", last->second));
    }
    last->second = step;
  }
}

bool Reference::IsCounted(uint32_t block, const ContributionKey& key) const {
  int times = 0;
  for (const ShardApplied& applied : applied_[block]) {
    if (StepOf(applied) != key.step) continue;
    times += static_cast<int>(std::ranges::count(
        applied.contributors, key.incarnation, &ShardApplied::Contributor::incarnation));
  }
  return times == 1;
}

// Whether the error feedback that this worker sent when it left counts exactly once.
// Error feedback that is too late for one step counts in a later one. After the last step
// of the job there may be none.
bool Reference::HasPartedOnce(uint32_t block, const ContributionKey& key) const {
  std::optional<uint64_t> last;
  for (const auto& [which, push] : pushes_) {
    const bool is_its = which.first.incarnation == key.incarnation &&
                        which.second == blocks_[block].tensor && push.parting;
    if (is_its) last = which.first.step;
  }
  if (!last) return true;
  int times = 0;
  for (const ShardApplied& applied : applied_[block]) {
    times += static_cast<int>(
        std::ranges::count_if(applied.contributors, [&](const auto& one) {
          return one.parting && one.incarnation == key.incarnation;
        }));
  }
  return times == 1 || (times == 0 && *last >= applied_[block].size());
}

void Reference::CheckSets() {
  for (const auto& [which, push] : pushes_) {
    if (push.parting) continue;
    const ContributionKey& key = which.first;
    std::optional<bool> counts;
    if (late_.contains(key)) counts = false;
    for (uint32_t block = 0; block < blocks_.size(); ++block) {
      const auto of_block = pushes_.find({key, blocks_[block].tensor});
      if (of_block == pushes_.end() || key.step >= applied_[block].size()) continue;
      const bool is_counted = IsCounted(block, key);
      if (counts.value_or(is_counted) == is_counted) {
        counts = is_counted;
        continue;
      }
      Violate(absl::StrCat(
          "step ", key.step, " of rank ", key.rank, " is part of ",
          is_counted ? "" : "other blocks and not of ", "block ", block,
          late_.contains(key) ? ", and its worker took it back" : " and not of others"));
    }
  }
}

void Reference::CheckPromises() {
  for (const ContributionKey& key : promised_) {
    for (uint32_t block = 0; block < blocks_.size(); ++block) {
      if (job_.training.sync().has_quorum()) {
        if (HasPartedOnce(block, key)) continue;
        Violate(absl::StrCat("block ", block, " has not what rank ", key.rank,
                             " left, or twice"));
        continue;
      }
      if (!pushes_.contains({key, blocks_[block].tensor})) continue;
      if (IsCounted(block, key)) continue;
      Violate(absl::StrCat("block ", block, " lost what rank ", key.rank,
                           " left at step ", key.step));
    }
  }
}

void Reference::CheckAcknowledged(uint32_t rank, uint32_t incarnation) {
  for (const auto& [key, block] : acknowledged_) {
    if (key.rank != rank || key.incarnation != incarnation) continue;
    if (late_.contains(key) || IsCounted(block, key)) continue;
    Violate(absl::StrCat("block ", block, " acknowledged step ", key.step, " of rank ",
                         rank, " and did not count it once"));
  }
}

Reference::Model Reference::After(uint64_t steps) {
  CheckPromises();
  if (job_.training.sync().has_quorum()) CheckSets();
  Replay replay(*this);
  if (job_.training.sync().is_async()) {
    for (uint32_t block = 0; block < blocks_.size(); ++block) replay.Arrive(block);
  } else {
    for (uint64_t step = 0; step < steps; ++step) replay.Step(step);
  }
  return {replay.weights(), replay.views()};
}

}  // namespace syncline::sim
