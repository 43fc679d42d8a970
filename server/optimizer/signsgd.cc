#include "server/optimizer/signsgd.h"

#include <array>
#include <cstddef>

#include "comm/base/check.h"
#include "comm/base/isa.h"
#include "server/optimizer/option_ranges.h"

namespace syncline {
namespace {

constexpr std::array kOptions = {LearningRate(1e-3), WeightDecay(0)};

struct Coefficients {
  float rate;   // below 0 with `maximize`
  float decay;  // learning rate * weight decay
};

SYNCLINE_KERNEL void UpdateBody(const Coefficients& coefficients, size_t n,
                                const float* mean_gradient, float* weights) {
  const Coefficients c = coefficients;
  const float* __restrict gradient = mean_gradient;
  float* __restrict master = weights;
  for (size_t i = 0; i < n; ++i) {
    const float p = master[i];
    const float up = gradient[i] > 0.0f ? c.rate : 0.0f;
    const float down = gradient[i] < 0.0f ? c.rate : 0.0f;
    master[i] = p - (c.decay * p + (up - down));
  }
}

class SignSgd final : public Optimizer {
 public:
  explicit SignSgd(const OptionValues& values)
      : weight_decay_(OptionOr(kOptions, values, "weight_decay")) {}

  std::string_view name() const override { return "signsgd"; }
  std::vector<StateSlot> slots() const override { return {}; }

  void Apply(const StepScalars& scalars, const Strip& strip,
             const TensorData& /*tensor*/) const override {
    SYNCLINE_CHECK(strip.master.size() == strip.gradient.size());
    const double lr = scalars.learning_rate;
    // Of the scale only the sign matters. Products with it might vanish.
    const float scale = scalars.gradient_scale;
    const double sign = scale > 0 ? 1 : scale < 0 ? -1 : 0;
    const Coefficients c = {.rate = static_cast<float>(sign * lr),
                            .decay = static_cast<float>(lr * weight_decay_)};
    Kernel<UpdateBody>::Run(c, strip.gradient.size(), strip.gradient.data(),
                            strip.master.data());
  }

 private:
  const double weight_decay_;
};

}  // namespace

std::span<const OptionSpec> SignSgdOptions() { return kOptions; }

std::unique_ptr<Optimizer> MakeSignSgd(const OptionValues& values) {
  return std::make_unique<SignSgd>(values);
}

}  // namespace syncline
