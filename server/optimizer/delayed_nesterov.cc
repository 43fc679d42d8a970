#include "server/optimizer/delayed_nesterov.h"

#include <cstddef>

#include "comm/base/check.h"
#include "comm/base/isa.h"
#include "server/optimizer/decay_rule.h"
#include "server/optimizer/sgd.h"

namespace syncline {
namespace {

struct Coefficients {
  float gradient_scale;
  float l2;
  float momentum;
  float share;        // 1 / N
  float of_momentum;  // of m in this step
  float learning_rate;
  float decay;  // learning rate / N * decoupled weight decay
};

struct Arrays {
  const float* gradient;
  float* master;
  float* momentum;
  float* delayed;
};

SYNCLINE_KERNEL void BetweenBody(const Coefficients& coefficients, size_t n,
                                 Arrays arrays) {
  const Coefficients c = coefficients;
  const float* __restrict gradient = arrays.gradient;
  float* __restrict master = arrays.master;
  const float* __restrict momentum = arrays.momentum;
  float* __restrict delayed = arrays.delayed;
  for (size_t i = 0; i < n; ++i) {
    const float p = master[i];
    const float g = gradient[i] * c.gradient_scale + c.l2 * p;
    delayed[i] += g;
    const float direction = c.of_momentum * momentum[i] + c.share * g;
    master[i] = p - (c.decay * p + c.learning_rate * direction);
  }
}

SYNCLINE_KERNEL void LastBody(const Coefficients& coefficients, size_t n, Arrays arrays) {
  const Coefficients c = coefficients;
  const float* __restrict gradient = arrays.gradient;
  float* __restrict master = arrays.master;
  float* __restrict momentum = arrays.momentum;
  float* __restrict delayed = arrays.delayed;
  for (size_t i = 0; i < n; ++i) {
    const float p = master[i];
    const float g = gradient[i] * c.gradient_scale + c.l2 * p;
    const float m = c.momentum * momentum[i] + c.share * (delayed[i] + g);
    momentum[i] = m;
    delayed[i] = 0;
    const float direction = c.of_momentum * m + c.share * g;
    master[i] = p - (c.decay * p + c.learning_rate * direction);
  }
}

class DelayedNesterov final : public Optimizer {
 public:
  explicit DelayedNesterov(const OptionValues& values)
      : decay_(DecayRule::Of(SgdOptions(), values)),
        momentum_(OptionOr(SgdOptions(), values, "momentum")),
        every_(static_cast<uint64_t>(OptionOr(SgdOptions(), values, "momentum_every"))),
        between_(OptionOr(SgdOptions(), values, "momentum_between")) {}

  std::string_view name() const override { return "sgd"; }
  std::vector<StateSlot> slots() const override {
    return {{.name = kMomentumSlot, .kind = SlotKind::kSigned},
            {.name = "delayed", .kind = SlotKind::kSigned}};
  }

  void Apply(const StepScalars& scalars, const Strip& strip,
             const TensorData& /*tensor*/) const override {
    const size_t n = strip.gradient.size();
    SYNCLINE_CHECK(strip.master.size() == n);
    SYNCLINE_CHECK(strip.state.size() == 2);
    const bool is_last = scalars.step % every_ == 0;
    const auto steps = static_cast<double>(every_);
    const double part = is_last ? 1 - between_ * (steps - 1) : between_;
    const Coefficients c = {.gradient_scale = scalars.gradient_scale,
                            .l2 = decay_.L2(),
                            .momentum = static_cast<float>(momentum_),
                            .share = static_cast<float>(1 / steps),
                            .of_momentum = static_cast<float>(part * momentum_),
                            .learning_rate = static_cast<float>(scalars.learning_rate),
                            .decay = decay_.DecayAt(scalars.learning_rate / steps)};
    const Arrays arrays = {strip.gradient.data(), strip.master.data(), strip.state[0],
                           strip.state[1]};
    if (is_last) return Kernel<LastBody>::Run(c, n, arrays);
    Kernel<BetweenBody>::Run(c, n, arrays);
  }

 private:
  const DecayRule decay_;
  const double momentum_;
  const uint64_t every_;
  const double between_;
};

}  // namespace

bool DelaysMomentum(const OptimizerSettings& settings, const GroupOptions& group) {
  if (settings.name != "sgd") return false;
  const OptionValues values = Merge(settings.options, group.options);
  return OptionOr(OptionsOf("sgd"), values, "momentum_every") > 1;
}

std::unique_ptr<Optimizer> MakeDelayedNesterov(const OptionValues& values) {
  return std::make_unique<DelayedNesterov>(values);
}

}  // namespace syncline
