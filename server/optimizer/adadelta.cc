#include "server/optimizer/adadelta.h"

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
    LearningRate(1), WeightDecay(0), Decoupled(0),
    Beta("rho", 0.9, "memory of the mean squares of gradients and steps"), Epsilon(1e-6)};

struct Coefficients {
  float gradient_scale;
  float l2;
  float rho;
  float one_minus_rho;
  float epsilon;
  float learning_rate;
  float decay;  // learning rate * decoupled weight decay
};

struct Arrays {
  const float* gradient;
  float* master;
  float* square;
  float* moved;
};

SYNCLINE_KERNEL void UpdateBody(const Coefficients& coefficients, size_t n,
                                Arrays arrays) {
  const Coefficients c = coefficients;
  const float* __restrict gradient = arrays.gradient;
  float* __restrict master = arrays.master;
  float* __restrict square = arrays.square;
  float* __restrict moved = arrays.moved;
  for (size_t i = 0; i < n; ++i) {
    const float p = master[i];
    const float u = moved[i];
    const float g = gradient[i] * c.gradient_scale + c.l2 * p;
    const float v = c.rho * square[i] + (c.one_minus_rho * g) * g;
    square[i] = v;
    const float step = std::sqrt(u + c.epsilon) / std::sqrt(v + c.epsilon) * g;
    moved[i] = c.rho * u + (c.one_minus_rho * step) * step;
    master[i] = p - (c.decay * p + c.learning_rate * step);
  }
}

class Adadelta final : public Optimizer {
 public:
  explicit Adadelta(const OptionValues& values)
      : decay_(DecayRule::Of(kOptions, values)),
        rho_(OptionOr(kOptions, values, "rho")),
        epsilon_(OptionOr(kOptions, values, "eps")) {}

  std::string_view name() const override { return "adadelta"; }
  std::vector<StateSlot> slots() const override {
    return {{.name = "square", .kind = SlotKind::kUnsigned},
            {.name = "moved", .kind = SlotKind::kUnsigned}};
  }

  void Apply(const StepScalars& scalars, const Strip& strip,
             const TensorData& /*tensor*/) const override {
    SYNCLINE_CHECK(strip.master.size() == strip.gradient.size());
    SYNCLINE_CHECK(strip.state.size() == 2);
    const double lr = scalars.learning_rate;
    const Coefficients c = {.gradient_scale = scalars.gradient_scale,
                            .l2 = decay_.L2(),
                            .rho = static_cast<float>(rho_),
                            .one_minus_rho = static_cast<float>(1.0 - rho_),
                            .epsilon = static_cast<float>(epsilon_),
                            .learning_rate = static_cast<float>(lr),
                            .decay = decay_.DecayAt(lr)};
    Kernel<UpdateBody>::Run(c, strip.gradient.size(),
                            Arrays{strip.gradient.data(), strip.master.data(),
                                   strip.state[0], strip.state[1]});
  }

 private:
  const DecayRule decay_;
  const double rho_;
  const double epsilon_;
};

}  // namespace

std::span<const OptionSpec> AdadeltaOptions() { return kOptions; }

std::unique_ptr<Optimizer> MakeAdadelta(const OptionValues& values) {
  return std::make_unique<Adadelta>(values);
}

}  // namespace syncline
