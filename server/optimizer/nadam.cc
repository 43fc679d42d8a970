#include "server/optimizer/nadam.h"

#include <array>
#include <cmath>
#include <cstddef>

#include "comm/base/check.h"
#include "comm/base/isa.h"
#include "server/optimizer/adam_values.h"
#include "server/optimizer/option_ranges.h"

namespace syncline {
namespace {

constexpr std::array kOptions = {
    LearningRate(2e-3),
    WeightDecay(0),
    Decoupled(0),
    Beta("beta1", 0.9, "memory of the mean gradient"),
    Beta("beta2", 0.999, "memory of the mean square"),
    OptionSpec{.name = "momentum_decay",
               .standard = 4e-3,
               .most = kMaxRate,
               .meaning = "how fast the momentum grows from beta1 / 2 to beta1"},
    Epsilon(1e-8)};

// Computes u(t) of nadam.h, and the product U(t) of u(1) to u(t), in constant time.
//
// The first products are in a table. It ends where U(t) is negligible beside 1, or where
// u(t) has reached beta1; from there on U(t) is a power of beta1. The table has 53
// entries with the default options, and at most 2,938 (momentum_decay 0.34, beta1 near
// 1).
class MomentumSchedule {
 public:
  MomentumSchedule(double beta1, double decay)
      : beta1_(beta1), decay_(decay), products_{1.0} {
    for (double t = 1; products_.back() > kNegligible && Missing(t) > kNegligible; ++t) {
      products_.push_back(products_.back() * At(t));
    }
  }

  double At(double t) const { return beta1_ * (1.0 - Missing(t)); }
  double Product(uint64_t t) const {
    if (t < products_.size()) return products_[t];
    const auto beyond = static_cast<double>(t - (products_.size() - 1));
    return products_.back() * std::pow(beta1_, beyond);
  }

 private:
  static constexpr double kNegligible = 0x1p-60;

  double Missing(double t) const { return 0.5 * std::pow(0.96, t * decay_); }

  const double beta1_;
  const double decay_;
  std::vector<double> products_;  // products_[t] is U(t)
};

struct Coefficients {
  float gradient_scale;
  float l2;
  float beta1;
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float root_correction;  // 1 / sqrt(1 - beta2^t)
  float epsilon;
  float gradient_step;  // lr * (1 - u(t)) / (1 - U(t))
  float mean_step;      // lr * u(t + 1) / (1 - U(t + 1))
  float decay;          // lr * decoupled weight decay
};

struct Arrays {
  const float* gradient;
  float* master;
  float* mean;
  float* variance;
};

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
    const float denominator = std::sqrt(v) * c.root_correction + c.epsilon;
    master[i] = p - (c.decay * p + (c.gradient_step * g + c.mean_step * m) / denominator);
  }
}

class NAdam final : public Optimizer {
 public:
  explicit NAdam(const OptionValues& values)
      : values_(AdamValues::Of(kOptions, values)),
        momentum_(values_.beta1, OptionOr(kOptions, values, "momentum_decay")) {}

  std::string_view name() const override { return "nadam"; }
  std::vector<StateSlot> slots() const override {
    return {{.name = "mean", .kind = SlotKind::kSigned},
            {.name = "variance", .kind = SlotKind::kUnsigned}};
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
    const double gradient_share =
        (1.0 - momentum_.At(t)) / (1.0 - momentum_.Product(scalars.step));
    const double mean_share =
        momentum_.At(t + 1) / (1.0 - momentum_.Product(scalars.step + 1));
    return {.gradient_scale = scalars.gradient_scale,
            .l2 = values_.decay.L2(),
            .beta1 = static_cast<float>(values_.beta1),
            .one_minus_beta1 = static_cast<float>(1.0 - values_.beta1),
            .beta2 = static_cast<float>(values_.beta2),
            .one_minus_beta2 = static_cast<float>(1.0 - values_.beta2),
            .root_correction =
                static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(values_.beta2, t))),
            .epsilon = static_cast<float>(values_.epsilon),
            .gradient_step = static_cast<float>(lr * gradient_share),
            .mean_step = static_cast<float>(lr * mean_share),
            .decay = values_.decay.DecayAt(lr)};
  }

  const AdamValues values_;
  const MomentumSchedule momentum_;
};

}  // namespace

std::span<const OptionSpec> NAdamOptions() { return kOptions; }

std::unique_ptr<Optimizer> MakeNAdam(const OptionValues& values) {
  return std::make_unique<NAdam>(values);
}

}  // namespace syncline
