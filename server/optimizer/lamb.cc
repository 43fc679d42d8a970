#include "server/optimizer/lamb.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>

#include "comm/base/check.h"
#include "comm/base/isa.h"
#include "server/optimizer/option_ranges.h"
#include "server/optimizer/reduce.h"

namespace syncline {
namespace {

constexpr std::array kOptions = {
    LearningRate(1e-3),
    WeightDecay(0.01),
    Beta("beta1", 0.9, "memory of the mean gradient"),
    Beta("beta2", 0.999, "memory of the mean square"),
    Epsilon(1e-6),
    OptionSpec{.name = "always_adapt",
               .kind = OptionKind::kFlag,
               .meaning = "1: adapt the step to the weights without weight decay, too"}};

// Number of elements whose directions are computed at a time, so that they stay in L1.
constexpr size_t kPiece = 1024;
static_assert(kPiece % kSumLanes == 0);
using Piece = std::array<float, kPiece>;

// Coefficients are computed in float64 and rounded once. Each mean uses only 1 - beta.
// Rounding beta2 itself, by 1e-8 of 0.999, would be an error of 1e-5 in the part that a
// mean forgets at each step.
struct Coefficients {
  float gradient_scale;
  float fresh1;           // 1 - beta1
  float fresh2;           // 1 - beta2
  float mean_correction;  // 1 / (1 - beta1^t)
  float root_correction;  // 1 / sqrt(1 - beta2^t)
  float epsilon;
  float weight_decay;
};

constexpr float kLargest = std::numeric_limits<float>::max();

struct Arrays {
  const float* gradient;
  const float* master;
  float* mean;
  float* variance;
  float* direction;
};

SYNCLINE_KERNEL void DirectionBody(const Coefficients& coefficients, size_t n,
                                   Arrays arrays) {
  const Coefficients c = coefficients;
  const float* __restrict gradient = arrays.gradient;
  const float* __restrict master = arrays.master;
  float* __restrict mean = arrays.mean;
  float* __restrict variance = arrays.variance;
  float* __restrict direction = arrays.direction;
  for (size_t i = 0; i < n; ++i) {
    const float g = gradient[i] * c.gradient_scale;
    const float m = mean[i] + c.fresh1 * (g - mean[i]);
    const float sum = variance[i] + ((c.fresh2 * g) * g - c.fresh2 * variance[i]);
    // An infinite variance would become NaN in the next step.
    const float v = kLargest < sum ? kLargest : sum;
    mean[i] = m;
    variance[i] = v;
    const float denominator = std::sqrt(v) * c.root_correction + c.epsilon;
    direction[i] = m * c.mean_correction / denominator + c.weight_decay * master[i];
  }
}

SYNCLINE_KERNEL void StepBody(float rate, size_t n, const float* __restrict direction,
                              float* __restrict master) {
  for (size_t i = 0; i < n; ++i) master[i] -= rate * direction[i];
}

class Lamb final : public Optimizer, private TensorReduction {
 public:
  explicit Lamb(const OptionValues& values)
      : weight_decay_(OptionOr(kOptions, values, "weight_decay")),
        beta1_(OptionOr(kOptions, values, "beta1")),
        beta2_(OptionOr(kOptions, values, "beta2")),
        epsilon_(OptionOr(kOptions, values, "eps")),
        adapts_(weight_decay_ > 0 || OptionOr(kOptions, values, "always_adapt") != 0) {}

  std::string_view name() const override { return "lamb"; }
  std::vector<StateSlot> slots() const override {
    return {{.name = "mean", .kind = SlotKind::kSigned},
            {.name = "variance", .kind = SlotKind::kUnsigned}};
  }
  const TensorReduction* tensor_reduction() const override {
    return adapts_ ? this : nullptr;
  }

  void Apply(const StepScalars& scalars, const Strip& strip,
             const TensorData& tensor) const override {
    SYNCLINE_CHECK(strip.master.size() == strip.gradient.size());
    const Coefficients c = CoefficientsOf(scalars);
    const double ratio = adapts_ ? tensor.figures[kRatio] : 1;
    const auto rate = static_cast<float>(scalars.learning_rate * ratio);
    Piece direction;
    for (size_t first = 0; first < strip.gradient.size(); first += kPiece) {
      const size_t n = std::min(kPiece, strip.gradient.size() - first);
      Kernel<DirectionBody>::Run(c, n,
                                 Arrays{.gradient = strip.gradient.data() + first,
                                        .master = strip.master.data() + first,
                                        .mean = strip.state[0] + first,
                                        .variance = strip.state[1] + first,
                                        .direction = direction.data()});
      Kernel<StepBody>::Run(rate, n, direction.data(), strip.master.data() + first);
    }
  }

 private:
  static constexpr size_t kWeightSquares = 0;
  static constexpr size_t kDirectionSquares = 1;
  static constexpr size_t kRatio = 0;  // after Finish, in place of kWeightSquares

  int rounds() const override { return 1; }
  size_t Figures(const TensorShape& /*shape*/) const override { return 2; }
  size_t Factors(const TensorShape& /*shape*/) const override { return 0; }

  // Updates copies of the state, because Apply makes the same update again.
  void Reduce(int /*round*/, const StepScalars& scalars, const Strip& strip,
              const TensorData& tensor) const override {
    const Coefficients c = CoefficientsOf(scalars);
    RunningSquares squares;
    Piece direction;
    Piece mean;
    Piece variance;
    for (size_t first = 0; first < strip.gradient.size(); first += kPiece) {
      const size_t n = std::min(kPiece, strip.gradient.size() - first);
      std::copy_n(strip.state[0] + first, n, mean.begin());
      std::copy_n(strip.state[1] + first, n, variance.begin());
      Kernel<DirectionBody>::Run(c, n,
                                 Arrays{.gradient = strip.gradient.data() + first,
                                        .master = strip.master.data() + first,
                                        .mean = mean.data(),
                                        .variance = variance.data(),
                                        .direction = direction.data()});
      squares.Add(std::span(direction).first(n));
    }
    tensor.figures[kWeightSquares] += SumOfSquares(strip.master);
    tensor.figures[kDirectionSquares] += squares.Total();
  }

  void Finish(int /*round*/, const StepScalars& /*scalars*/,
              const TensorData& tensor) const override {
    const double weights = tensor.figures[kWeightSquares];
    const double direction = tensor.figures[kDirectionSquares];
    tensor.figures[kRatio] =
        weights > 0 && direction > 0 ? std::sqrt(weights / direction) : 1;
  }

  Coefficients CoefficientsOf(const StepScalars& scalars) const {
    const auto t = static_cast<double>(scalars.step);
    return {
        .gradient_scale = scalars.gradient_scale,
        .fresh1 = static_cast<float>(1.0 - beta1_),
        .fresh2 = static_cast<float>(1.0 - beta2_),
        .mean_correction = static_cast<float>(1.0 / (1.0 - std::pow(beta1_, t))),
        .root_correction = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(beta2_, t))),
        .epsilon = static_cast<float>(epsilon_),
        .weight_decay = static_cast<float>(weight_decay_)};
  }

  const double weight_decay_;
  const double beta1_;
  const double beta2_;
  const double epsilon_;
  const bool adapts_;
};

}  // namespace

std::span<const OptionSpec> LambOptions() { return kOptions; }

std::unique_ptr<Optimizer> MakeLamb(const OptionValues& values) {
  return std::make_unique<Lamb>(values);
}

}  // namespace syncline
