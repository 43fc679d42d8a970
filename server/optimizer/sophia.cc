#include "server/optimizer/sophia.h"

#include <array>
#include <cstddef>

#include "comm/base/check.h"
#include "comm/base/isa.h"
#include "server/optimizer/option_ranges.h"

namespace syncline {
namespace {

constexpr std::array kOptions = {
    LearningRate(1e-4),
    WeightDecay(0.1),
    Beta("beta1", 0.965, "memory of the mean gradient"),
    Beta("beta2", 0.99, "memory of the Hessian estimate"),
    OptionSpec{.name = "rho",
               .standard = 0.04,
               .most = kMaxRate,
               .meaning = "the smaller, the more elements take a step of full length"},
    OptionSpec{.name = "hessian_interval",
               .standard = 10,
               .least = 1,
               .most = kMaxRate,
               .kind = OptionKind::kWhole,
               .meaning = "updates between two Hessian estimates"}};

constexpr float kLeastCurvature = 1e-15f;

// Each mean has one coefficient, 1 - beta, computed in float64 and rounded once. Rounding
// beta2 itself, by 1e-8 of 0.99, would be an error of 1e-6 in the part that h forgets at
// each step.
struct HessianCoefficients {
  float gradient_scale;
  float samples;
  float fresh;  // 1 - beta2
};

struct HessianArrays {
  const float* gradient;
  float* hessian;
};

SYNCLINE_KERNEL void HessianBody(const HessianCoefficients& coefficients, size_t n,
                                 HessianArrays arrays) {
  const HessianCoefficients c = coefficients;
  const float* __restrict gradient = arrays.gradient;
  float* __restrict hessian = arrays.hessian;
  for (size_t i = 0; i < n; ++i) {
    const float g = gradient[i] * c.gradient_scale;
    hessian[i] += c.fresh * (c.samples * (g * g) - hessian[i]);
  }
}

struct Coefficients {
  float gradient_scale;
  float fresh;  // 1 - beta1
  float rho;
  float learning_rate;
  float decay;  // learning rate * weight decay
};

struct Arrays {
  const float* gradient;
  float* master;
  float* mean;
  const float* hessian;
};

SYNCLINE_KERNEL void UpdateBody(const Coefficients& coefficients, size_t n,
                                Arrays arrays) {
  const Coefficients c = coefficients;
  const float* __restrict gradient = arrays.gradient;
  float* __restrict master = arrays.master;
  float* __restrict mean = arrays.mean;
  const float* __restrict hessian = arrays.hessian;
  for (size_t i = 0; i < n; ++i) {
    const float p = master[i];
    const float m = mean[i] + c.fresh * (gradient[i] * c.gradient_scale - mean[i]);
    mean[i] = m;
    const float curvature = c.rho * hessian[i];
    float ratio = m / (curvature > kLeastCurvature ? curvature : kLeastCurvature);
    ratio = ratio > 1.0f ? 1.0f : ratio;
    ratio = ratio < -1.0f ? -1.0f : ratio;
    master[i] = p - (c.decay * p + c.learning_rate * ratio);
  }
}

class Sophia final : public Optimizer {
 public:
  explicit Sophia(const OptionValues& values)
      : weight_decay_(OptionOr(kOptions, values, "weight_decay")),
        beta1_(OptionOr(kOptions, values, "beta1")),
        beta2_(OptionOr(kOptions, values, "beta2")),
        rho_(OptionOr(kOptions, values, "rho")),
        interval_(static_cast<uint64_t>(OptionOr(kOptions, values, "hessian_interval"))) {
  }

  std::string_view name() const override { return "sophia"; }
  std::vector<StateSlot> slots() const override {
    return {{.name = "mean", .kind = SlotKind::kSigned},
            {.name = "hessian", .kind = SlotKind::kUnsigned}};
  }
  ContributionPlan contributions() const override {
    return {.hessian_every = interval_ + 1};
  }

  void Apply(const StepScalars& scalars, const Strip& strip,
             const TensorData& /*tensor*/) const override {
    const size_t n = strip.gradient.size();
    SYNCLINE_CHECK(strip.master.size() == n);
    SYNCLINE_CHECK(strip.state.size() == 2);
    if (scalars.contribution == ContributionKind::kHessian) {
      const HessianCoefficients c = {.gradient_scale = scalars.gradient_scale,
                                     .samples = static_cast<float>(scalars.samples),
                                     .fresh = static_cast<float>(1.0 - beta2_)};
      Kernel<HessianBody>::Run(c, n,
                               HessianArrays{strip.gradient.data(), strip.state[1]});
      return;
    }
    const double lr = scalars.learning_rate;
    const Coefficients c = {.gradient_scale = scalars.gradient_scale,
                            .fresh = static_cast<float>(1.0 - beta1_),
                            .rho = static_cast<float>(rho_),
                            .learning_rate = static_cast<float>(lr),
                            .decay = static_cast<float>(lr * weight_decay_)};
    Kernel<UpdateBody>::Run(c, n,
                            Arrays{strip.gradient.data(), strip.master.data(),
                                   strip.state[0], strip.state[1]});
  }

 private:
  const double weight_decay_;
  const double beta1_;
  const double beta2_;
  const double rho_;
  const uint64_t interval_;
};

}  // namespace

std::span<const OptionSpec> SophiaOptions() { return kOptions; }

std::unique_ptr<Optimizer> MakeSophia(const OptionValues& values) {
  return std::make_unique<Sophia>(values);
}

}  // namespace syncline
