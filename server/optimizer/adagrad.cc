#include "server/optimizer/adagrad.h"

#include <array>
#include <cmath>
#include <cstddef>

#include "comm/base/check.h"
#include "comm/base/isa.h"
#include "server/optimizer/option_ranges.h"

namespace syncline {
namespace {

constexpr std::array kOptions = {
    LearningRate(1e-2),
    WeightDecay(0),
    Decoupled(0),
    OptionSpec{.name = "lr_decay",
               .most = kMostRate,
               .meaning = "divides the learning rate by 1 + (t - 1) * lr_decay"},
    OptionSpec{.name = "initial_accumulator_value",
               .most = kMostRate,
               .meaning = "the sum of squares before the first step"},
    Epsilon(1e-10)};

struct Coefficients {
  float gradient_scale;
  float l2;
  float start;  // joins the sum of squares at the first step, which finds zeros
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
      : weight_decay_(OptionOr(kOptions, values, "weight_decay")),
        decoupled_(OptionOr(kOptions, values, "decoupled") != 0),
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
            .l2 = static_cast<float>(decoupled_ ? 0 : weight_decay_),
            .start = static_cast<float>(scalars.step == 1 ? start_ : 0),
            .epsilon = static_cast<float>(epsilon_),
            .step_size = static_cast<float>(lr / (1.0 + steps_before * lr_decay_)),
            .decay = static_cast<float>(decoupled_ ? lr * weight_decay_ : 0)};
  }

  const double weight_decay_;
  const bool decoupled_;
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
