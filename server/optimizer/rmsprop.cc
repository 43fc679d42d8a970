#include "server/optimizer/rmsprop.h"

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
    Beta("alpha", 0.99, "memory of the mean square"),
    Beta("momentum", 0, "share of the last step's direction that is kept"),
    OptionSpec{.name = "centered",
               .kind = OptionKind::kFlag,
               .meaning = "divide by the standard deviation, not the mean square's root"},
    Epsilon(1e-8)};

struct Coefficients {
  float gradient_scale;
  float l2;
  float alpha;
  float one_minus_alpha;
  float epsilon;
  float momentum;
  float learning_rate;
  float decay;  // learning rate * decoupled weight decay
};

// `mean` is null unless the form is centered, `buffer` unless it has momentum.
struct Arrays {
  const float* gradient;
  float* master;
  float* square;
  float* mean;
  float* buffer;
};

enum class Centered { kNo, kYes };
enum class Momentum { kNo, kYes };

template <Centered kCentered, Momentum kMomentum>
SYNCLINE_KERNEL void UpdateBody(const Coefficients& coefficients, size_t n,
                                Arrays arrays) {
  const Coefficients c = coefficients;
  const float* __restrict gradient = arrays.gradient;
  float* __restrict master = arrays.master;
  float* __restrict square = arrays.square;
  float* __restrict mean = arrays.mean;
  float* __restrict buffer = arrays.buffer;
  for (size_t i = 0; i < n; ++i) {
    const float p = master[i];
    const float g = gradient[i] * c.gradient_scale + c.l2 * p;
    const float s = c.alpha * square[i] + (c.one_minus_alpha * g) * g;
    square[i] = s;
    float variance = s;
    if constexpr (kCentered == Centered::kYes) {
      const float m = c.alpha * mean[i] + c.one_minus_alpha * g;
      mean[i] = m;
      const float difference = s - m * m;
      variance = difference > 0.0f ? difference : 0.0f;
    }
    float direction = g / (std::sqrt(variance) + c.epsilon);
    if constexpr (kMomentum == Momentum::kYes) {
      direction = c.momentum * buffer[i] + direction;
      buffer[i] = direction;
    }
    master[i] = p - (c.decay * p + c.learning_rate * direction);
  }
}

class Rmsprop final : public Optimizer {
 public:
  explicit Rmsprop(const OptionValues& values)
      : decay_(DecayRule::Of(kOptions, values)),
        alpha_(OptionOr(kOptions, values, "alpha")),
        momentum_(OptionOr(kOptions, values, "momentum")),
        centered_(OptionOr(kOptions, values, "centered") != 0),
        epsilon_(OptionOr(kOptions, values, "eps")) {}

  std::string_view name() const override { return "rmsprop"; }
  std::vector<StateSlot> slots() const override {
    std::vector<StateSlot> slots = {{.name = "square", .kind = SlotKind::kUnsigned}};
    if (centered_) slots.push_back({.name = "mean", .kind = SlotKind::kSigned});
    if (momentum_ != 0) {
      slots.push_back({.name = kMomentumSlot, .kind = SlotKind::kSigned});
    }
    return slots;
  }

  void Apply(const StepScalars& scalars, const Strip& strip,
             const TensorData& /*tensor*/) const override {
    const size_t n = strip.gradient.size();
    const bool has_momentum = momentum_ != 0;
    SYNCLINE_CHECK(strip.master.size() == n);
    SYNCLINE_CHECK(strip.state.size() ==
                   1u + (centered_ ? 1 : 0) + (has_momentum ? 1 : 0));
    const Coefficients c = CoefficientsOf(scalars);
    const Arrays arrays = {strip.gradient.data(), strip.master.data(), strip.state[0],
                           centered_ ? strip.state[1] : nullptr,
                           has_momentum ? strip.state.back() : nullptr};
    if (centered_ && has_momentum) {
      Kernel<UpdateBody<Centered::kYes, Momentum::kYes>>::Run(c, n, arrays);
    } else if (centered_) {
      Kernel<UpdateBody<Centered::kYes, Momentum::kNo>>::Run(c, n, arrays);
    } else if (has_momentum) {
      Kernel<UpdateBody<Centered::kNo, Momentum::kYes>>::Run(c, n, arrays);
    } else {
      Kernel<UpdateBody<Centered::kNo, Momentum::kNo>>::Run(c, n, arrays);
    }
  }

 private:
  Coefficients CoefficientsOf(const StepScalars& scalars) const {
    const double lr = scalars.learning_rate;
    return {.gradient_scale = scalars.gradient_scale,
            .l2 = decay_.L2(),
            .alpha = static_cast<float>(alpha_),
            .one_minus_alpha = static_cast<float>(1.0 - alpha_),
            .epsilon = static_cast<float>(epsilon_),
            .momentum = static_cast<float>(momentum_),
            .learning_rate = static_cast<float>(lr),
            .decay = decay_.DecayAt(lr)};
  }

  const DecayRule decay_;
  const double alpha_;
  const double momentum_;
  const bool centered_;
  const double epsilon_;
};

}  // namespace

std::span<const OptionSpec> RmspropOptions() { return kOptions; }

std::unique_ptr<Optimizer> MakeRmsprop(const OptionValues& values) {
  return std::make_unique<Rmsprop>(values);
}

}  // namespace syncline
