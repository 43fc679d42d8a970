#include "server/optimizer/adam.h"

#include <array>
#include <cmath>
#include <cstddef>

#include "comm/base/check.h"
#include "comm/base/isa.h"
#include "server/optimizer/adam_values.h"
#include "server/optimizer/option_ranges.h"

namespace syncline {
namespace {

constexpr OptionSpec kBeta1 = Beta("beta1", 0.9, "memory of the mean gradient");
constexpr OptionSpec kBeta2 = Beta("beta2", 0.999, "memory of the mean square");
constexpr OptionSpec kAmsgrad = {.name = "amsgrad",
                                 .kind = OptionKind::kFlag,
                                 .meaning = "divide by the greatest variance so far"};
constexpr std::array kAdamOptions = {
    LearningRate(1e-3), WeightDecay(0), Decoupled(0), kBeta1, kBeta2,
    Epsilon(1e-8),      kAmsgrad};
constexpr std::array kAdamWOptions = {
    LearningRate(1e-3), WeightDecay(0.01), Decoupled(1), kBeta1, kBeta2,
    Epsilon(1e-8),      kAmsgrad};

// Coefficients are computed in float64 and rounded once. 1 - 0.999f alone would put a
// relative error of 1.3e-5 into v.
struct Coefficients {
  float gradient_scale;
  float l2;
  float beta1;
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float root_correction;  // 1 / sqrt(1 - beta2^t)
  float epsilon;
  float step_size;  // lr / (1 - beta1^t)
  // lr * weight_decay. It is subtracted. The factor 1 - lr * weight_decay is so near 1
  // that its rounding would change the decay, in the same way at every step.
  float decay;
};

struct Arrays {
  const float* gradient;
  float* master;
  float* mean;
  float* variance;
  float* max_variance;  // null: no AMSGrad
};

enum class Variance { kCurrent, kGreatest };

template <Variance kVariance>
SYNCLINE_KERNEL void UpdateBody(const Coefficients& coefficients, size_t n,
                                Arrays arrays) {
  const Coefficients c = coefficients;
  const float* __restrict gradient = arrays.gradient;
  float* __restrict master = arrays.master;
  float* __restrict mean = arrays.mean;
  float* __restrict variance = arrays.variance;
  float* __restrict max_variance = arrays.max_variance;
  for (size_t i = 0; i < n; ++i) {
    const float p = master[i];
    const float g = gradient[i] * c.gradient_scale + c.l2 * p;
    const float m = c.beta1 * mean[i] + c.one_minus_beta1 * g;
    float v = c.beta2 * variance[i] + (c.one_minus_beta2 * g) * g;
    mean[i] = m;
    variance[i] = v;
    if constexpr (kVariance == Variance::kGreatest) {
      v = v > max_variance[i] ? v : max_variance[i];
      max_variance[i] = v;
    }
    const float denominator = std::sqrt(v) * c.root_correction + c.epsilon;
    master[i] = p - (c.decay * p + c.step_size * (m / denominator));
  }
}

class Adam final : public Optimizer {
 public:
  Adam(std::string_view name, std::span<const OptionSpec> specs,
       const OptionValues& values)
      : name_(name),
        values_(AdamValues::Of(specs, values)),
        amsgrad_(OptionOr(specs, values, "amsgrad") != 0) {}

  std::string_view name() const override { return name_; }
  std::vector<StateSlot> slots() const override {
    std::vector<StateSlot> slots = {{.name = "mean", .kind = SlotKind::kSigned},
                                    {.name = "variance", .kind = SlotKind::kUnsigned}};
    if (amsgrad_) {
      slots.push_back({.name = "max_variance", .kind = SlotKind::kUnsigned});
    }
    return slots;
  }

  void Apply(const StepScalars& scalars, const Strip& strip,
             const TensorData& /*tensor*/) const override {
    const size_t n = strip.gradient.size();
    SYNCLINE_CHECK(strip.master.size() == n);
    SYNCLINE_CHECK(strip.state.size() == (amsgrad_ ? 3u : 2u));
    const Coefficients c = CoefficientsOf(scalars);
    Arrays arrays = {strip.gradient.data(), strip.master.data(), strip.state[0],
                     strip.state[1], nullptr};
    if (!amsgrad_) return Kernel<UpdateBody<Variance::kCurrent>>::Run(c, n, arrays);
    arrays.max_variance = strip.state[2];
    Kernel<UpdateBody<Variance::kGreatest>>::Run(c, n, arrays);
  }

 private:
  Coefficients CoefficientsOf(const StepScalars& scalars) const {
    const auto t = static_cast<double>(scalars.step);
    const double lr = scalars.learning_rate;
    return {.gradient_scale = scalars.gradient_scale,
            .l2 = values_.decay.L2(),
            .beta1 = static_cast<float>(values_.beta1),
            .one_minus_beta1 = static_cast<float>(1.0 - values_.beta1),
            .beta2 = static_cast<float>(values_.beta2),
            .one_minus_beta2 = static_cast<float>(1.0 - values_.beta2),
            .root_correction =
                static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(values_.beta2, t))),
            .epsilon = static_cast<float>(values_.epsilon),
            .step_size = static_cast<float>(lr / (1.0 - std::pow(values_.beta1, t))),
            .decay = values_.decay.DecayAt(lr)};
  }

  const std::string_view name_;
  const AdamValues values_;
  const bool amsgrad_;
};

}  // namespace

std::span<const OptionSpec> AdamOptions() { return kAdamOptions; }
std::span<const OptionSpec> AdamWOptions() { return kAdamWOptions; }

std::unique_ptr<Optimizer> MakeAdam(const OptionValues& values) {
  return std::make_unique<Adam>("adam", kAdamOptions, values);
}
std::unique_ptr<Optimizer> MakeAdamW(const OptionValues& values) {
  return std::make_unique<Adam>("adamw", kAdamWOptions, values);
}

}  // namespace syncline
