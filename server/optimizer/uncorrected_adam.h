// One update of Adam without bias correction, the form that the 1-bit family freezes:
//   p -= lr * (m / (sqrt(v) + eps) + weight_decay * p)
// As in DeepSpeed, the decay is part of the step and uses the weight before it.
//
// Thread safety: pure functions.
#pragma once

#include <array>

#include "server/optimizer/optimizer.h"
#include "server/optimizer/option_ranges.h"

namespace syncline {

struct UncorrectedAdam {
  double learning_rate = 0;
  double weight_decay = 0;
  double beta1 = 0;
  double beta2 = 0;
  double epsilon = 0;
};

// Where the moments of an update come from.
enum class Moments {
  kBoth,        // both follow the gradient
  kFrozen,      // the mean follows the gradient, the variance stays
  kFromWorker,  // the contributions are the mean, the variance stays
};

inline constexpr std::array kUncorrectedAdamOptions = {
    LearningRate(1e-3), WeightDecay(0), Beta("beta1", 0.9, "memory of the mean gradient"),
    Beta("beta2", 0.999, "memory of the mean square"), Epsilon(1e-8)};

// Returns the options above from `values`. The learning rate is the option's; the caller
// replaces it by that of the step.
UncorrectedAdam UncorrectedAdamOf(const OptionValues& values);

// Returns the slots "mean" and "variance".
std::vector<StateSlot> UncorrectedAdamSlots();

void ApplyUncorrectedAdam(const UncorrectedAdam& adam, Moments moments,
                          float gradient_scale, const Strip& strip);

}  // namespace syncline
