#include "server/optimizer/sgd.h"

#include <array>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "comm/base/check.h"
#include "comm/base/isa.h"
#include "comm/base/limits.h"
#include "server/optimizer/decay_rule.h"
#include "server/optimizer/delayed_nesterov.h"
#include "server/optimizer/option_ranges.h"

namespace syncline {
namespace {

// More contributions than workers only make the steps smaller.
constexpr double kMaxMomentumEvery = kMaxWorkers;

constexpr std::array kOptions = {
    LearningRate(1e-3),
    WeightDecay(0),
    Decoupled(0),
    Beta("momentum", 0, "share of the last step's direction that is kept"),
    OptionSpec{.name = "dampening", .meaning = "share of the gradient that is left out"},
    OptionSpec{
        .name = "nesterov", .kind = OptionKind::kFlag, .meaning = "look one step ahead"},
    OptionSpec{.name = "momentum_every",
               .standard = 1,
               .least = 1,
               .most = kMaxMomentumEvery,
               .kind = OptionKind::kWhole,
               .meaning = "mode asp: contributions that make one step of the momentum"},
    OptionSpec{.name = "momentum_between",
               .meaning = "share of the momentum that each contribution but the last of "
                          "them applies"},
    OptionSpec{.name = "replace",
               .kind = OptionKind::kFlag,
               .meaning = "1: weights become the step itself, -lr * gradient"}};

struct Coefficients {
  float gradient_scale;
  float l2;
  float momentum;
  float fresh;  // 1 - dampening
  float learning_rate;
  float decay;  // learning rate * decoupled weight decay
};

struct Arrays {
  const float* gradient;
  float* master;
  float* buffer;
};

SYNCLINE_KERNEL void PlainBody(const Coefficients& coefficients, size_t n,
                               Arrays arrays) {
  const Coefficients c = coefficients;
  const float* __restrict gradient = arrays.gradient;
  float* __restrict master = arrays.master;
  for (size_t i = 0; i < n; ++i) {
    const float p = master[i];
    const float g = gradient[i] * c.gradient_scale + c.l2 * p;
    master[i] = p - (c.decay * p + c.learning_rate * g);
  }
}

SYNCLINE_KERNEL void ReplaceBody(const Coefficients& coefficients, size_t n,
                                 Arrays arrays) {
  const Coefficients c = coefficients;
  const float* __restrict gradient = arrays.gradient;
  float* __restrict master = arrays.master;
  for (size_t i = 0; i < n; ++i) {
    master[i] = -(c.learning_rate * (gradient[i] * c.gradient_scale));
  }
}

SYNCLINE_KERNEL void MomentumBody(const Coefficients& coefficients, size_t n,
                                  Arrays arrays) {
  const Coefficients c = coefficients;
  const float* __restrict gradient = arrays.gradient;
  float* __restrict master = arrays.master;
  float* __restrict buffer = arrays.buffer;
  for (size_t i = 0; i < n; ++i) {
    const float p = master[i];
    const float g = gradient[i] * c.gradient_scale + c.l2 * p;
    const float b = c.momentum * buffer[i] + c.fresh * g;
    buffer[i] = b;
    master[i] = p - (c.decay * p + c.learning_rate * b);
  }
}

SYNCLINE_KERNEL void NesterovBody(const Coefficients& coefficients, size_t n,
                                  Arrays arrays) {
  const Coefficients c = coefficients;
  const float* __restrict gradient = arrays.gradient;
  float* __restrict master = arrays.master;
  float* __restrict buffer = arrays.buffer;
  for (size_t i = 0; i < n; ++i) {
    const float p = master[i];
    const float g = gradient[i] * c.gradient_scale + c.l2 * p;
    const float b = c.momentum * buffer[i] + c.fresh * g;
    buffer[i] = b;
    master[i] = p - (c.decay * p + c.learning_rate * (g + c.momentum * b));
  }
}

class Sgd final : public Optimizer {
 public:
  explicit Sgd(const OptionValues& values)
      : decay_(DecayRule::Of(kOptions, values)),
        momentum_(OptionOr(kOptions, values, "momentum")),
        dampening_(OptionOr(kOptions, values, "dampening")),
        nesterov_(OptionOr(kOptions, values, "nesterov") != 0),
        replaces_(OptionOr(kOptions, values, "replace") != 0) {}

  std::string_view name() const override { return "sgd"; }
  std::vector<StateSlot> slots() const override {
    if (momentum_ == 0) return {};
    return {{.name = kMomentumSlot, .kind = SlotKind::kSigned}};
  }

  void Apply(const StepScalars& scalars, const Strip& strip,
             const TensorData& /*tensor*/) const override {
    const size_t n = strip.gradient.size();
    SYNCLINE_CHECK(strip.master.size() == n);
    Coefficients c = {.gradient_scale = scalars.gradient_scale,
                      .l2 = decay_.L2(),
                      .momentum = static_cast<float>(momentum_),
                      .fresh = static_cast<float>(1.0 - dampening_),
                      .learning_rate = static_cast<float>(scalars.learning_rate),
                      .decay = decay_.DecayAt(scalars.learning_rate)};
    Arrays arrays = {strip.gradient.data(), strip.master.data(), nullptr};
    if (replaces_) return Kernel<ReplaceBody>::Run(c, n, arrays);
    if (momentum_ == 0) return Kernel<PlainBody>::Run(c, n, arrays);
    if (scalars.step == 1) c.fresh = 1;  // b is g at the first step
    arrays.buffer = strip.state[0];
    if (nesterov_) return Kernel<NesterovBody>::Run(c, n, arrays);
    Kernel<MomentumBody>::Run(c, n, arrays);
  }

 private:
  const DecayRule decay_;
  const double momentum_;
  const double dampening_;
  const bool nesterov_;
  const bool replaces_;
};

absl::Status CheckDelay(const OptionValues& values) {
  const double every = OptionOr(kOptions, values, "momentum_every");
  const double between = OptionOr(kOptions, values, "momentum_between");
  if (every > 1 && OptionOr(kOptions, values, "nesterov") == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "optimizer 'sgd': momentum_every=", every,
        " is delayed Nesterov, which needs nesterov=1 and momentum above 0"));
  }
  if (between * every <= 1 && (every > 1 || between == 0)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("optimizer 'sgd': momentum_between is ", between,
                   ", but must be in [0, 1 / momentum_every], where momentum_every is ",
                   every, " and must be above 1"));
}

}  // namespace

std::span<const OptionSpec> SgdOptions() { return kOptions; }

absl::Status CheckSgd(const OptionValues& values) {
  const double momentum = OptionOr(kOptions, values, "momentum");
  const double dampening = OptionOr(kOptions, values, "dampening");
  const bool adds = momentum > 0 || OptionOr(kOptions, values, "weight_decay") > 0;
  if (adds && OptionOr(kOptions, values, "replace") != 0) {
    return absl::InvalidArgumentError(
        "optimizer 'sgd': with replace nothing of the weights stays, so leave momentum "
        "and "
        "weight_decay at 0");
  }
  if (OptionOr(kOptions, values, "nesterov") == 0 || (momentum > 0 && dampening == 0)) {
    return CheckDelay(values);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("optimizer 'sgd': nesterov needs momentum above 0 and dampening 0, "
                   "but momentum is ",
                   momentum, " and dampening ", dampening));
}

std::unique_ptr<Optimizer> MakeSgd(const OptionValues& values) {
  if (OptionOr(kOptions, values, "momentum_every") > 1) {
    return MakeDelayedNesterov(values);
  }
  return std::make_unique<Sgd>(values);
}

}  // namespace syncline
