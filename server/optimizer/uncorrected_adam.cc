#include "server/optimizer/uncorrected_adam.h"

#include <cmath>
#include <cstddef>

#include "comm/base/check.h"
#include "comm/base/isa.h"

namespace syncline {
namespace {

struct Coefficients {
  float gradient_scale;
  float beta1;
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float epsilon;
  float learning_rate;
  float decay;  // learning rate * weight decay
};

struct Arrays {
  const float* gradient;
  float* master;
  float* mean;
  float* variance;
};

template <Moments kMoments>
SYNCLINE_KERNEL void UpdateBody(const Coefficients& coefficients, size_t n,
                                Arrays arrays) {
  const Coefficients c = coefficients;
  const float* __restrict gradient = arrays.gradient;
  float* __restrict master = arrays.master;
  float* __restrict mean = arrays.mean;
  float* __restrict variance = arrays.variance;
  for (size_t i = 0; i < n; ++i) {
    const float p = master[i];
    const float g = gradient[i] * c.gradient_scale;
    float m = g;
    if constexpr (kMoments != Moments::kFromWorker) {
      m = c.beta1 * mean[i] + c.one_minus_beta1 * g;
    }
    mean[i] = m;
    float v = variance[i];
    if constexpr (kMoments == Moments::kBoth) {
      v = c.beta2 * v + (c.one_minus_beta2 * g) * g;
      variance[i] = v;
    }
    master[i] = p - (c.decay * p + c.learning_rate * (m / (std::sqrt(v) + c.epsilon)));
  }
}

}  // namespace

UncorrectedAdam UncorrectedAdamOf(const OptionValues& values) {
  const auto option = [&](std::string_view name) {
    return OptionOr(kUncorrectedAdamOptions, values, name);
  };
  return {.learning_rate = option("lr"),
          .weight_decay = option("weight_decay"),
          .beta1 = option("beta1"),
          .beta2 = option("beta2"),
          .epsilon = option("eps")};
}

std::vector<StateSlot> UncorrectedAdamSlots() {
  return {{.name = "mean", .kind = SlotKind::kSigned},
          {.name = "variance", .kind = SlotKind::kUnsigned}};
}

void ApplyUncorrectedAdam(const UncorrectedAdam& adam, Moments moments,
                          float gradient_scale, const Strip& strip) {
  const size_t n = strip.gradient.size();
  SYNCLINE_CHECK(strip.master.size() == n);
  SYNCLINE_CHECK(strip.state.size() == 2);
  const Coefficients c = {
      .gradient_scale = gradient_scale,
      .beta1 = static_cast<float>(adam.beta1),
      .one_minus_beta1 = static_cast<float>(1.0 - adam.beta1),
      .beta2 = static_cast<float>(adam.beta2),
      .one_minus_beta2 = static_cast<float>(1.0 - adam.beta2),
      .epsilon = static_cast<float>(adam.epsilon),
      .learning_rate = static_cast<float>(adam.learning_rate),
      .decay = static_cast<float>(adam.learning_rate * adam.weight_decay)};
  const Arrays arrays = {strip.gradient.data(), strip.master.data(), strip.state[0],
                         strip.state[1]};
  switch (moments) {
    case Moments::kBoth:
      return Kernel<UpdateBody<Moments::kBoth>>::Run(c, n, arrays);
    case Moments::kFrozen:
      return Kernel<UpdateBody<Moments::kFrozen>>::Run(c, n, arrays);
    case Moments::kFromWorker:
      return Kernel<UpdateBody<Moments::kFromWorker>>::Run(c, n, arrays);
  }
}

}  // namespace syncline
