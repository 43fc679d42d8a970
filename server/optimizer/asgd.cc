#include "server/optimizer/asgd.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

#include "comm/base/check.h"
#include "comm/base/isa.h"
#include "server/optimizer/option_ranges.h"

namespace syncline {
namespace {

constexpr double kMaxSteps = 1e12;

constexpr std::array kOptions = {
    LearningRate(1e-2), WeightDecay(0),
    OptionSpec{.name = "lambd",
               .standard = 1e-4,
               .most = kMaxRate,
               .meaning = "pulls weights towards zero, and lowers the rate over time"},
    OptionSpec{.name = "alpha",
               .standard = 0.75,
               .most = kMaxRate,
               .meaning = "power with which the rate falls"},
    OptionSpec{.name = "t0",
               .standard = 1e6,
               .most = kMaxSteps,
               .meaning = "updates before the average of the weights begins"}};

struct Coefficients {
  float gradient_scale;
  float l2;
  float eta;
  float decay;  // lambd * eta
  float share;  // weight of this step in the average
};

struct Arrays {
  const float* gradient;
  float* master;
  float* average;
};

enum class Averages { kNo, kYes };

template <Averages kAverages>
SYNCLINE_KERNEL void UpdateBody(const Coefficients& coefficients, size_t n,
                                Arrays arrays) {
  const Coefficients c = coefficients;
  const float* __restrict gradient = arrays.gradient;
  float* __restrict master = arrays.master;
  float* __restrict average = arrays.average;
  for (size_t i = 0; i < n; ++i) {
    const float p = master[i];
    const float g = gradient[i] * c.gradient_scale + c.l2 * p;
    const float next = p - (c.decay * p + c.eta * g);
    master[i] = next;
    if constexpr (kAverages == Averages::kYes) {
      average[i] += c.share * (next - average[i]);
    } else {
      average[i] = next;
    }
  }
}

class Asgd final : public Optimizer {
 public:
  explicit Asgd(const OptionValues& values)
      : weight_decay_(OptionOr(kOptions, values, "weight_decay")),
        lambd_(OptionOr(kOptions, values, "lambd")),
        alpha_(OptionOr(kOptions, values, "alpha")),
        t0_(OptionOr(kOptions, values, "t0")) {}

  std::string_view name() const override { return "asgd"; }
  std::vector<StateSlot> slots() const override {
    return {{.name = "average", .kind = SlotKind::kWeights}};
  }

  void Apply(const StepScalars& scalars, const Strip& strip,
             const TensorData& /*tensor*/) const override {
    SYNCLINE_CHECK(strip.master.size() == strip.gradient.size());
    SYNCLINE_CHECK(strip.state.size() == 1);
    const size_t n = strip.gradient.size();
    const Arrays arrays = {strip.gradient.data(), strip.master.data(), strip.state[0]};
    const auto before = static_cast<double>(scalars.step - 1);
    const double share = 1.0 / std::max(1.0, before - t0_);
    const Coefficients c = CoefficientsOf(scalars, share);
    if (share == 1) {
      Kernel<UpdateBody<Averages::kNo>>::Run(c, n, arrays);
    } else {
      Kernel<UpdateBody<Averages::kYes>>::Run(c, n, arrays);
    }
  }

 private:
  Coefficients CoefficientsOf(const StepScalars& scalars, double share) const {
    const auto before = static_cast<double>(scalars.step - 1);
    const double lr = scalars.learning_rate;
    const double eta = lr / std::pow(1.0 + lambd_ * lr * before, alpha_);
    return {.gradient_scale = scalars.gradient_scale,
            .l2 = static_cast<float>(weight_decay_),
            .eta = static_cast<float>(eta),
            .decay = static_cast<float>(lambd_ * eta),
            .share = static_cast<float>(share)};
  }

  const double weight_decay_;
  const double lambd_;
  const double alpha_;
  const double t0_;
};

}  // namespace

std::span<const OptionSpec> AsgdOptions() { return kOptions; }

std::unique_ptr<Optimizer> MakeAsgd(const OptionValues& values) {
  return std::make_unique<Asgd>(values);
}

}  // namespace syncline
