// One tensor under training, for tests: an optimizer with its weights, state and
// statistics. It makes steps the way a shard does.
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "comm/base/check.h"
#include "comm/base/tiling.h"
#include "server/optimizer/optimizer.h"

namespace syncline {

class Training {
 public:
  Training(const OptimizerSettings& settings, std::vector<float> weights,
           const std::vector<uint64_t>& shape = {})
      : learning_rate_(OptionOr(OptionsOf(settings.name), settings.options, "lr")),
        optimizer_(*MakeOptimizer(settings)),
        shape_(shape.empty() ? std::vector<uint64_t>{weights.size()} : shape),
        weights_(std::move(weights)),
        state_(optimizer_->slots().size(), std::vector<float>(weights_.size(), 0.0f)) {
    SYNCLINE_CHECK(shape_.elements() == weights_.size());
    if (const auto* reduction = optimizer_->tensor_reduction(); reduction != nullptr) {
      figures_.resize(reduction->Figures(shape_));
      factors_.resize(reduction->Factors(shape_));
    }
    if (const auto* reduction = optimizer_->job_reduction(); reduction != nullptr) {
      job_memory_.resize(reduction->Memory());
    }
  }

  StepScalars scalars = {};  // the test may change them

  // Makes one update in strips of `strip` elements.
  void Step(std::span<const float> gradient, size_t strip = kTileElements) {
    scalars.update = step_;
    scalars.step = ++step_;
    if (scalars.learning_rate == 0) scalars.learning_rate = learning_rate_;
    Reduce(gradient);
    for (size_t first = 0; first < weights_.size(); first += strip) {
      const size_t n = std::min(strip, weights_.size() - first);
      optimizer_->Apply(scalars, StripOf(gradient.subspan(first, n), first), data());
    }
  }

  const std::vector<float>& weights() const { return weights_; }
  const std::vector<float>& state(size_t slot) const { return state_[slot]; }

 private:
  void Reduce(std::span<const float> gradient) {
    if (const auto* reduction = optimizer_->tensor_reduction(); reduction != nullptr) {
      std::ranges::fill(figures_, 0);
      for (int round = 0; round < reduction->rounds(); ++round) {
        ForEachTile([&](size_t first, size_t n) {
          reduction->Reduce(round, scalars, StripOf(gradient.subspan(first, n), first),
                            data());
        });
        reduction->Finish(round, scalars, data());
      }
    }
    if (const auto* reduction = optimizer_->job_reduction(); reduction != nullptr) {
      std::vector<double> sums(reduction->Figures());
      ForEachTile([&](size_t first, size_t n) {
        reduction->Reduce(StripOf(gradient.subspan(first, n), first), sums);
      });
      reduction->Finish(scalars, sums, job_memory_);
    }
  }

  template <typename Visit>
  void ForEachTile(const Visit& visit) {
    for (size_t first = 0; first < weights_.size(); first += kTileElements) {
      visit(first, std::min<size_t>(kTileElements, weights_.size() - first));
    }
  }

  Strip StripOf(std::span<const float> gradient, size_t first) {
    pointers_.clear();
    for (auto& slot : state_) pointers_.push_back(slot.data() + first);
    return {.gradient = gradient,
            .master = std::span(weights_).subspan(first, gradient.size()),
            .state = pointers_,
            .first_element = first};
  }
  TensorData data() {
    return {.shape = shape_,
            .factors = factors_,
            .figures = figures_,
            .job_memory = job_memory_};
  }

  const double learning_rate_;
  const std::unique_ptr<Optimizer> optimizer_;
  const TensorShape shape_;
  std::vector<float> weights_;
  std::vector<std::vector<float>> state_;
  std::vector<float*> pointers_;
  std::vector<float> factors_;
  std::vector<double> figures_;
  std::vector<double> job_memory_;
  uint64_t step_ = 0;
};

}  // namespace syncline
