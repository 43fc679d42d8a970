// One update of Adam without bias correction, the form that the 1-bit family freezes:
//   p -= lr * (m / (sqrt(v) + eps) + weight_decay * p)
// As in DeepSpeed, the decay is inside of the step and sees the weight before it.
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

// Where the moments of the update come from.
enum class Moments {
  kBoth,        // both follow the gradient
  kFrozen,      // the mean follows the gradient, the variance stays
  kFromWorker,  // the contributions are the mean, the variance stays
};

inline constexpr std::array kUncorrectedAdamOptions = {
    LearningRate(1e-3), WeightDecay(0), Beta("beta1", 0.9, "memory of the mean gradient"),
    Beta("beta2", 0.999, "memory of the mean square"), Epsilon(1e-8)};

// The options above, with the learning rate of the step.
UncorrectedAdam UncorrectedAdamOf(const OptionValues& values);

// Slots "mean" and "variance".
std::vector<StateSlot> UncorrectedAdamSlots();

void ApplyUncorrectedAdam(const UncorrectedAdam& adam, Moments moments,
                          float gradient_scale, const Strip& strip);

}  // namespace syncline
