#include "server/optimizer/adamax.h"

#include <array>
#include <cmath>
#include <cstddef>

#include "comm/base/check.h"
#include "comm/base/isa.h"
#include "server/optimizer/adam_values.h"
#include "server/optimizer/option_ranges.h"

namespace syncline {
namespace {

constexpr std::array kOptions = {LearningRate(2e-3),
                                 WeightDecay(0),
                                 Decoupled(0),
                                 Beta("beta1", 0.9, "memory of the mean gradient"),
                                 Beta("beta2", 0.999, "memory of the largest gradient"),
                                 Epsilon(1e-8)};

struct Coefficients {
  float gradient_scale;
  float l2;
  float beta1;
  float one_minus_beta1;
  float beta2;
  float epsilon;
  float step_size;  // learning rate / (1 - beta1^t)
  float decay;      // learning rate * decoupled weight decay
};

struct Arrays {
  const float* gradient;
  float* master;
  float* mean;
  float* largest;
};

SYNCLINE_KERNEL void UpdateBody(const Coefficients& coefficients, size_t n,
                                Arrays arrays) {
  const Coefficients c = coefficients;
  const float* __restrict gradient = arrays.gradient;
  float* __restrict master = arrays.master;
  float* __restrict mean = arrays.mean;
  float* __restrict largest = arrays.largest;
  for (size_t i = 0; i < n; ++i) {
    const float p = master[i];
    const float g = gradient[i] * c.gradient_scale + c.l2 * p;
    const float m = c.beta1 * mean[i] + c.one_minus_beta1 * g;
    const float before = c.beta2 * largest[i];
    const float now = std::abs(g) + c.epsilon;
    const float u = before > now ? before : now;
    mean[i] = m;
    largest[i] = u;
    master[i] = p - (c.decay * p + c.step_size * (m / u));
  }
}

class Adamax final : public Optimizer {
 public:
  explicit Adamax(const OptionValues& values)
      : values_(AdamValues::Of(kOptions, values)) {}

  std::string_view name() const override { return "adamax"; }
  std::vector<StateSlot> slots() const override {
    return {{.name = "mean", .kind = SlotKind::kSigned},
            {.name = "largest", .kind = SlotKind::kUnsigned}};
  }

  void Apply(const StepScalars& scalars, const Strip& strip,
             const TensorData& /*tensor*/) const override {
    SYNCLINE_CHECK(strip.master.size() == strip.gradient.size());
    SYNCLINE_CHECK(strip.state.size() == 2);
    Kernel<UpdateBody>::Run(CoefficientsOf(scalars), strip.gradient.size(),
                            Arrays{strip.gradient.data(), strip.master.data(),
                                   strip.state[0], strip.state[1]});
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
            .epsilon = static_cast<float>(values_.epsilon),
            .step_size = static_cast<float>(lr / (1.0 - std::pow(values_.beta1, t))),
            .decay = values_.decay.DecayAt(lr)};
  }

  const AdamValues values_;
};

}  // namespace

std::span<const OptionSpec> AdamaxOptions() { return kOptions; }

std::unique_ptr<Optimizer> MakeAdamax(const OptionValues& values) {
  return std::make_unique<Adamax>(values);
}

}  // namespace syncline
