#include "server/optimizer/adagrad.h"

#include <array>
#include <cmath>
#include <cstddef>

#include "comm/base/check.h"
#include "comm/base/isa.h"
#include "server/optimizer/decay_rule.h"
#include "server/optimizer/option_ranges.h"

namespace syncline {
namespace {

constexpr std::array kOptions = {
    LearningRate(1e-2),
    WeightDecay(0),
    Decoupled(0),
    OptionSpec{.name = "lr_decay",
               .most = kMaxRate,
               .meaning = "divides the learning rate by 1 + (t - 1) * lr_decay"},
    OptionSpec{.name = "initial_accumulator_value",
               .most = kMaxRate,
               .meaning = "the sum of squares before the first step"},
    Epsilon(1e-10)};

struct Coefficients {
  float gradient_scale;
  float l2;
  float start;  // first step: the initial sum of squares; later 0
  float epsilon;
  float step_size;
  float decay;  // learning rate * decoupled weight decay
};

struct Arrays {
  const float* gradient;
  float* master;
  float* sum;
};

SYNCLINE_KERNEL void UpdateBody(const Coefficients& coefficients, size_t n,
                                Arrays arrays) {
  const Coefficients c = coefficients;
  const float* __restrict gradient = arrays.gradient;
  float* __restrict master = arrays.master;
  float* __restrict sum = arrays.sum;
  for (size_t i = 0; i < n; ++i) {
    const float p = master[i];
    const float g = gradient[i] * c.gradient_scale + c.l2 * p;
    const float s = (sum[i] + c.start) + g * g;
    sum[i] = s;
    master[i] = p - (c.decay * p + c.step_size * (g / (std::sqrt(s) + c.epsilon)));
  }
}

class Adagrad final : public Optimizer {
 public:
  explicit Adagrad(const OptionValues& values)
      : decay_(DecayRule::Of(kOptions, values)),
        lr_decay_(OptionOr(kOptions, values, "lr_decay")),
        start_(OptionOr(kOptions, values, "initial_accumulator_value")),
        epsilon_(OptionOr(kOptions, values, "eps")) {}

  std::string_view name() const override { return "adagrad"; }
  std::vector<StateSlot> slots() const override {
    return {{.name = "sum", .kind = SlotKind::kUnsigned}};
  }

  void Apply(const StepScalars& scalars, const Strip& strip,
             const TensorData& /*tensor*/) const override {
    SYNCLINE_CHECK(strip.master.size() == strip.gradient.size());
    SYNCLINE_CHECK(strip.state.size() == 1);
    Kernel<UpdateBody>::Run(
        CoefficientsOf(scalars), strip.gradient.size(),
        Arrays{strip.gradient.data(), strip.master.data(), strip.state[0]});
  }

 private:
  Coefficients CoefficientsOf(const StepScalars& scalars) const {
    const auto steps_before = static_cast<double>(scalars.step - 1);
    const double lr = scalars.learning_rate;
    return {.gradient_scale = scalars.gradient_scale,
            .l2 = decay_.L2(),
            .start = static_cast<float>(scalars.step == 1 ? start_ : 0),
            .epsilon = static_cast<float>(epsilon_),
            .step_size = static_cast<float>(lr / (1.0 + steps_before * lr_decay_)),
            .decay = decay_.DecayAt(lr)};
  }

  const DecayRule decay_;
  const double lr_decay_;
  const double start_;
  const double epsilon_;
};

}  // namespace

std::span<const OptionSpec> AdagradOptions() { return kOptions; }

std::unique_ptr<Optimizer> MakeAdagrad(const OptionValues& values) {
  return std::make_unique<Adagrad>(values);
}

}  // namespace syncline
