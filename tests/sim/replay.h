// Computes in one process what all shards computed together: whole tensors, step by step,
// from the contributions that the shards counted. It uses the optimizers' own code, which
// has other oracles. It decides independently which contributions are summed, and how
// they are weighted, skipped and scaled.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "server/optimizer/state_storage.h"
#include "server/optimizer/training.h"
#include "tests/sim/reference.h"

namespace syncline::sim {

class Replay {
 public:
  explicit Replay(Reference& reference);

  void Step(uint64_t step);
  // Mode asp: computes all updates of the block, one contribution after the other.
  void Arrive(uint32_t block);
  const std::vector<std::vector<float>>& weights() const { return weights_; }
  // Returns the weights as workers hold them.
  const std::vector<std::vector<float>>& views() const { return views_; }

 private:
  struct Block {
    BlockRange range = {};
    // Samples of the update under way. Those of leaving workers count only if there are
    // no others.
    double samples = 0;
    double parting_samples = 0;
    uint64_t updates = 0;
    // The factor of the oldest contributor to the last step that had contributors.
    float rate_factor = 1;
    bool is_trained = true;
  };
  struct Tensor {
    std::vector<float> sum = {};  // of the update under way
    std::vector<std::vector<float>> state = {};
    std::vector<std::vector<std::byte>> stored = {};  // state, in its stored type
    std::vector<float> factors = {};
    std::vector<double> figures = {};
    std::vector<double> transform_figures = {};
    std::vector<float*> pointers = {};
  };

  void MakePlans();
  const TrainingPlan& PlanAt(uint64_t step) const {
    return *std::prev(plans_.upper_bound(step))->second;
  }
  void CheckPull(const Reference::Pull& pull);
  std::optional<std::vector<float>> Expected(const Reference::Pull& pull);
  // Computes the values that servers decode from each push.
  void DecodePushes();
  enum class Deltas { kNo, kYes };
  // `revision` is the number of the weights, which stochastic rounding depends on.
  std::vector<float> ShownOf(const Block& block);
  void Publish(uint32_t block, Deltas deltas, uint64_t revision);
  static std::span<float> PartOf(std::vector<std::vector<float>>& tensors,
                                 const BlockRange& range);
  void Add(uint32_t block, uint64_t version);
  void Update(uint64_t step);
  bool LacksSamples(const Block& block) const;
  static double Divisor(double samples, double parting_samples) {
    return samples > 0 ? samples : parting_samples;
  }
  // Returns the clip factor; empty: the step is skipped. Advances the loss scale.
  std::optional<float> Decide(uint64_t step);
  // `weight` is a factor of the transformed gradient.
  void Apply(uint32_t tensor, const BlockRange& range, const StepScalars& scalars,
             float weight = 1);
  void Load(uint32_t tensor);
  void Store(uint32_t tensor, uint64_t step);
  std::span<float> SumOf(const BlockRange& range);
  Strip StripOf(uint32_t tensor, uint64_t first, size_t count);
  StateType TypeOf(uint32_t tensor, size_t slot) const;
  StoredSlot SlotOf(uint32_t tensor, size_t slot);

  Reference& reference_;
  const JobSpec& job_;
  const std::vector<TrainedTensor> trained_;
  // Plans by the first step for which they hold, and the plan of the step under way.
  std::map<uint64_t, std::unique_ptr<const TrainingPlan>> plans_;
  const TrainingPlan* plan_ = nullptr;
  std::vector<Block> blocks_;
  std::vector<Tensor> tensors_;
  std::vector<std::vector<float>> weights_;
  std::vector<std::vector<float>> views_;
  const std::vector<TensorTransfers> transfers_;
  std::map<std::pair<ContributionKey, uint32_t>, std::vector<float>> received_;
  std::vector<double> job_memory_;
  LossScalerState scaler_;
  float loss_scale_ = 1;  // of the contributions to this update
};

}  // namespace syncline::sim
