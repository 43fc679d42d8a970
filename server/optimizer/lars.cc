#include "server/optimizer/lars.h"

#include <array>
#include <cmath>
#include <cstddef>

#include "comm/base/check.h"
#include "comm/base/isa.h"
#include "server/optimizer/option_ranges.h"
#include "server/optimizer/reduce.h"

namespace syncline {
namespace {

constexpr std::array kOptions = {
    LearningRate(1),
    WeightDecay(0),
    Beta("momentum", 0, "share of the last step's direction that is kept"),
    OptionSpec{
        .name = "nesterov", .kind = OptionKind::kFlag, .meaning = "look one step ahead"},
    OptionSpec{.name = "trust_coefficient",
               .standard = 1e-3,
               .most = kMaxRate,
               .meaning = "length of a step of rate 1, as a share of the weights' norm"},
    Epsilon(1e-8),
    OptionSpec{.name = "exclude_1d",
               .standard = 1,
               .kind = OptionKind::kFlag,
               .meaning =
                   "1: tensors of fewer than two dimensions are neither adapted nor "
                   "decayed"}};

struct Coefficients {
  float gradient_scale;  // r * StepScalars::gradient_scale
  float l2;              // r * weight_decay
  float momentum;
  float ahead;  // factor of b in the step: momentum with Nesterov, otherwise 1
  float fresh;  // factor of d in the step: 1 with Nesterov, otherwise 0
  float learning_rate;
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
    master[i] = p - c.learning_rate * (gradient[i] * c.gradient_scale + c.l2 * p);
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
    const float d = gradient[i] * c.gradient_scale + c.l2 * p;
    const float b = c.momentum * buffer[i] + d;
    buffer[i] = b;
    master[i] = p - c.learning_rate * (c.fresh * d + c.ahead * b);
  }
}

class Lars final : public Optimizer, private TensorReduction {
 public:
  explicit Lars(const OptionValues& values)
      : weight_decay_(OptionOr(kOptions, values, "weight_decay")),
        momentum_(OptionOr(kOptions, values, "momentum")),
        nesterov_(OptionOr(kOptions, values, "nesterov") != 0),
        trust_(OptionOr(kOptions, values, "trust_coefficient")),
        epsilon_(OptionOr(kOptions, values, "eps")),
        excludes_1d_(OptionOr(kOptions, values, "exclude_1d") != 0) {}

  std::string_view name() const override { return "lars"; }
  std::vector<StateSlot> slots() const override {
    if (momentum_ == 0) return {};
    return {{.name = kMomentumSlot, .kind = SlotKind::kSigned}};
  }
  const TensorReduction* tensor_reduction() const override { return this; }

  void Apply(const StepScalars& scalars, const Strip& strip,
             const TensorData& tensor) const override {
    const size_t n = strip.gradient.size();
    SYNCLINE_CHECK(strip.master.size() == n);
    const double ratio = Adapts(tensor.shape) ? tensor.figures[kRatio] : 1;
    const double decay = Adapts(tensor.shape) ? weight_decay_ : 0;
    const Coefficients c = {
        .gradient_scale = static_cast<float>(scalars.gradient_scale * ratio),
        .l2 = static_cast<float>(ratio * decay),
        .momentum = static_cast<float>(momentum_),
        .ahead = nesterov_ ? static_cast<float>(momentum_) : 1.0f,
        .fresh = nesterov_ ? 1.0f : 0.0f,
        .learning_rate = static_cast<float>(scalars.learning_rate)};
    Arrays arrays = {strip.gradient.data(), strip.master.data(), nullptr};
    if (momentum_ == 0) return Kernel<PlainBody>::Run(c, n, arrays);
    arrays.buffer = strip.state[0];
    Kernel<MomentumBody>::Run(c, n, arrays);
  }

 private:
  static constexpr size_t kWeightSquares = 0;
  static constexpr size_t kGradientSquares = 1;
  static constexpr size_t kRatio = 0;  // after Finish

  bool Adapts(const TensorShape& shape) const {
    return !excludes_1d_ || shape.dimensions() > 1;
  }

  int rounds() const override { return 1; }
  size_t Figures(const TensorShape& /*shape*/) const override { return 2; }
  size_t Factors(const TensorShape& /*shape*/) const override { return 0; }

  void Reduce(int /*round*/, const StepScalars& /*scalars*/, const Strip& strip,
              const TensorData& tensor) const override {
    if (!Adapts(tensor.shape)) return;
    tensor.figures[kWeightSquares] += SumOfSquares(strip.master);
    tensor.figures[kGradientSquares] += SumOfSquares(strip.gradient);
  }

  void Finish(int /*round*/, const StepScalars& scalars,
              const TensorData& tensor) const override {
    const double weights = std::sqrt(tensor.figures[kWeightSquares]);
    const double gradient =
        std::abs(scalars.gradient_scale) * std::sqrt(tensor.figures[kGradientSquares]);
    tensor.figures[kRatio] =
        weights > 0 && gradient > 0
            ? trust_ * weights / (gradient + weight_decay_ * weights + epsilon_)
            : 1;
  }

  const double weight_decay_;
  const double momentum_;
  const bool nesterov_;
  const double trust_;
  const double epsilon_;
  const bool excludes_1d_;
};

}  // namespace

std::span<const OptionSpec> LarsOptions() { return kOptions; }

absl::Status CheckLars(const OptionValues& values) {
  if (OptionOr(kOptions, values, "nesterov") == 0 ||
      OptionOr(kOptions, values, "momentum") > 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      "optimizer 'lars': nesterov needs momentum above 0, but momentum is 0");
}

std::unique_ptr<Optimizer> MakeLars(const OptionValues& values) {
  return std::make_unique<Lars>(values);
}

}  // namespace syncline
