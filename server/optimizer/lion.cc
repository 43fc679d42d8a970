#include "server/optimizer/lion.h"

#include <array>
#include <cstddef>

#include "comm/base/check.h"
#include "comm/base/isa.h"
#include "server/optimizer/option_ranges.h"

namespace syncline {
namespace {

constexpr std::array kOptions = {
    LearningRate(1e-4), WeightDecay(0),
    Beta("beta1", 0.9, "share of the mean gradient in the direction of the step"),
    Beta("beta2", 0.99, "memory of the mean gradient")};

struct Coefficients {
  float gradient_scale;
  float beta1;
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float learning_rate;
  float decay;  // learning rate * weight decay
};

struct Arrays {
  const float* gradient;
  float* master;
  float* mean;
};

SYNCLINE_KERNEL void UpdateBody(const Coefficients& coefficients, size_t n,
                                Arrays arrays) {
  const Coefficients c = coefficients;
  const float* __restrict gradient = arrays.gradient;
  float* __restrict master = arrays.master;
  float* __restrict mean = arrays.mean;
  for (size_t i = 0; i < n; ++i) {
    const float p = master[i];
    const float m = mean[i];
    const float g = gradient[i] * c.gradient_scale;
    const float direction = c.beta1 * m + c.one_minus_beta1 * g;
    const float up = direction > 0.0f ? c.learning_rate : 0.0f;
    const float down = direction < 0.0f ? c.learning_rate : 0.0f;
    mean[i] = c.beta2 * m + c.one_minus_beta2 * g;
    master[i] = p - (c.decay * p + (up - down));
  }
}

class Lion final : public Optimizer {
 public:
  explicit Lion(const OptionValues& values)
      : weight_decay_(OptionOr(kOptions, values, "weight_decay")),
        beta1_(OptionOr(kOptions, values, "beta1")),
        beta2_(OptionOr(kOptions, values, "beta2")) {}

  std::string_view name() const override { return "lion"; }
  std::vector<StateSlot> slots() const override {
    return {{.name = "mean", .kind = SlotKind::kSigned}};
  }

  void Apply(const StepScalars& scalars, const Strip& strip,
             const TensorData& /*tensor*/) const override {
    SYNCLINE_CHECK(strip.master.size() == strip.gradient.size());
    SYNCLINE_CHECK(strip.state.size() == 1);
    const double lr = scalars.learning_rate;
    const Coefficients c = {.gradient_scale = scalars.gradient_scale,
                            .beta1 = static_cast<float>(beta1_),
                            .one_minus_beta1 = static_cast<float>(1.0 - beta1_),
                            .beta2 = static_cast<float>(beta2_),
                            .one_minus_beta2 = static_cast<float>(1.0 - beta2_),
                            .learning_rate = static_cast<float>(lr),
                            .decay = static_cast<float>(lr * weight_decay_)};
    Kernel<UpdateBody>::Run(
        c, strip.gradient.size(),
        Arrays{strip.gradient.data(), strip.master.data(), strip.state[0]});
  }

 private:
  const double weight_decay_;
  const double beta1_;
  const double beta2_;
};

}  // namespace

std::span<const OptionSpec> LionOptions() { return kOptions; }

std::unique_ptr<Optimizer> MakeLion(const OptionValues& values) {
  return std::make_unique<Lion>(values);
}

}  // namespace syncline
