// The kind of values that workers push at each update of a job. Both sides know it in
// advance, so messages do not contain it.
#pragma once

#include <cstdint>

namespace syncline {

enum class ContributionKind : uint8_t {
  kGradient,
  // Gradient for labels sampled from the model's own output, for a Hessian estimate
  // (Sophia). Changes no weight.
  kHessian,
  kMomentum,  // the worker's own momentum (1-bit Adam)
};

// Updates are counted from 0.
struct ContributionPlan {
  uint64_t hessian_every = 0;  // at multiples of it; 0: never
  uint64_t momentum_from = 0;  // from this update on; 0: never

  bool operator==(const ContributionPlan&) const = default;

  ContributionKind KindAt(uint64_t update) const {
    if (hessian_every != 0 && update % hessian_every == 0) {
      return ContributionKind::kHessian;
    }
    return momentum_from != 0 && update >= momentum_from ? ContributionKind::kMomentum
                                                         : ContributionKind::kGradient;
  }
};

}  // namespace syncline
