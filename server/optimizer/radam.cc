#include "server/optimizer/radam.h"

#include <array>
#include <cmath>
#include <cstddef>

#include "comm/base/check.h"
#include "comm/base/isa.h"
#include "server/optimizer/adam_values.h"
#include "server/optimizer/option_ranges.h"

namespace syncline {
namespace {

constexpr std::array kOptions = {LearningRate(1e-3),
                                 WeightDecay(0),
                                 Decoupled(0),
                                 Beta("beta1", 0.9, "memory of the mean gradient"),
                                 Beta("beta2", 0.999, "memory of the mean square"),
                                 Epsilon(1e-8)};

struct Coefficients {
  float gradient_scale;
  float l2;
  float beta1;
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float epsilon;
  float step_size;
  float decay;  // lr * decoupled weight decay
};

struct Arrays {
  const float* gradient;
  float* master;
  float* mean;
  float* variance;
};

// Whether the step is divided by the root of the mean square. It is not until enough
// gradients were seen.
enum class Adaptive { kNo, kYes };

template <Adaptive kAdaptive>
SYNCLINE_KERNEL void UpdateBody(const Coefficients& coefficients, size_t n,
                                Arrays arrays) {
  const Coefficients c = coefficients;
  const float* __restrict gradient = arrays.gradient;
  float* __restrict master = arrays.master;
  float* __restrict mean = arrays.mean;
  float* __restrict variance = arrays.variance;
  for (size_t i = 0; i < n; ++i) {
    const float p = master[i];
    const float g = gradient[i] * c.gradient_scale + c.l2 * p;
    const float m = c.beta1 * mean[i] + c.one_minus_beta1 * g;
    const float v = c.beta2 * variance[i] + (c.one_minus_beta2 * g) * g;
    mean[i] = m;
    variance[i] = v;
    float direction = m;
    if constexpr (kAdaptive == Adaptive::kYes) {
      direction = m / (std::sqrt(v) + c.epsilon);
    }
    master[i] = p - (c.decay * p + c.step_size * direction);
  }
}

class RAdam final : public Optimizer {
 public:
  explicit RAdam(const OptionValues& values)
      : values_(AdamValues::Of(kOptions, values)) {}

  std::string_view name() const override { return "radam"; }
  std::vector<StateSlot> slots() const override {
    return {{.name = "mean", .kind = SlotKind::kSigned},
            {.name = "variance", .kind = SlotKind::kUnsigned}};
  }

  void Apply(const StepScalars& scalars, const Strip& strip,
             const TensorData& /*tensor*/) const override {
    const size_t n = strip.gradient.size();
    SYNCLINE_CHECK(strip.master.size() == n);
    SYNCLINE_CHECK(strip.state.size() == 2);
    const Arrays arrays = {strip.gradient.data(), strip.master.data(), strip.state[0],
                           strip.state[1]};
    const auto t = static_cast<double>(scalars.step);
    const double left = std::pow(values_.beta2, t);  // weight of the initial zero in v
    const double rho = 2.0 / (1.0 - values_.beta2) - 1.0;
    const double rho_t = rho - 2.0 * t * left / (1.0 - left);
    if (rho_t > 5) {
      const double rectification =
          std::sqrt((rho_t - 4) * (rho_t - 2) * rho / ((rho - 4) * (rho - 2) * rho_t));
      const Coefficients c =
          CoefficientsOf(scalars, rectification * std::sqrt(1.0 - left));
      Kernel<UpdateBody<Adaptive::kYes>>::Run(c, n, arrays);
    } else {
      Kernel<UpdateBody<Adaptive::kNo>>::Run(CoefficientsOf(scalars, 1), n, arrays);
    }
  }

 private:
  Coefficients CoefficientsOf(const StepScalars& scalars, double factor) const {
    const double lr = scalars.learning_rate;
    const double correction =
        1.0 - std::pow(values_.beta1, static_cast<double>(scalars.step));
    return {.gradient_scale = scalars.gradient_scale,
            .l2 = values_.decay.L2(),
            .beta1 = static_cast<float>(values_.beta1),
            .one_minus_beta1 = static_cast<float>(1.0 - values_.beta1),
            .beta2 = static_cast<float>(values_.beta2),
            .one_minus_beta2 = static_cast<float>(1.0 - values_.beta2),
            .epsilon = static_cast<float>(values_.epsilon),
            .step_size = static_cast<float>(lr * factor / correction),
            .decay = values_.decay.DecayAt(lr)};
  }

  const AdamValues values_;
};

}  // namespace

std::span<const OptionSpec> RAdamOptions() { return kOptions; }

std::unique_ptr<Optimizer> MakeRAdam(const OptionValues& values) {
  return std::make_unique<RAdam>(values);
}

}  // namespace syncline
