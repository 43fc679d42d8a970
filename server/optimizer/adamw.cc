#include "server/optimizer/adamw.h"

#include <cmath>
#include <cstddef>

#include "comm/base/check.h"
#include "comm/base/dispatch.h"

namespace syncline {
namespace {

// Computed in float64 and rounded once: 1 - 0.999f alone would put an error of 1.3e-5
// into v.
struct Coefficients {
  float gradient_scale;
  float beta1;
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float root_correction;  // 1 / sqrt(1 - beta2^t)
  float epsilon;
  float step_size;  // lr / (1 - beta1^t)
  // lr * weight_decay. Subtracted, because the factor 1 - lr * weight_decay is so near 1
  // that its rounding would shift the decay itself, every step the same way.
  float decay;
};

struct Arrays {
  const float* gradient;
  float* master;
  float* mean;
  float* variance;
};

SYNCLINE_MULTIVERSION void Update(const Coefficients& coefficients, size_t n,
                                  Arrays arrays) {
  const Coefficients c = coefficients;
  const float* __restrict gradient = arrays.gradient;
  float* __restrict master = arrays.master;
  float* __restrict mean = arrays.mean;
  float* __restrict variance = arrays.variance;
  for (size_t i = 0; i < n; ++i) {
    const float g = gradient[i] * c.gradient_scale;
    const float m = c.beta1 * mean[i] + c.one_minus_beta1 * g;
    const float v = c.beta2 * variance[i] + c.one_minus_beta2 * (g * g);
    mean[i] = m;
    variance[i] = v;
    const float denominator = std::sqrt(v) * c.root_correction + c.epsilon;
    master[i] -= c.decay * master[i] + c.step_size * (m / denominator);
  }
}

class AdamW final : public Optimizer {
 public:
  explicit AdamW(const OptimizerSettings& settings)
      : beta1_(settings.beta1), beta2_(settings.beta2), epsilon_(settings.epsilon) {}

  std::string_view name() const override { return "adamw"; }
  int StateSlots() const override { return 2; }

  void Apply(const StepScalars& scalars, const TileSpans& tile) const override {
    const size_t n = tile.gradient.size();
    SYNCLINE_CHECK(tile.master.size() == n);
    SYNCLINE_CHECK(n == 0 || (tile.state[0] != nullptr && tile.state[1] != nullptr));
    Update(CoefficientsOf(scalars), n,
           {tile.gradient.data(), tile.master.data(), tile.state[0], tile.state[1]});
  }

 private:
  Coefficients CoefficientsOf(const StepScalars& scalars) const {
    const auto t = static_cast<double>(scalars.step);
    const double lr = scalars.learning_rate;
    return {
        .gradient_scale = scalars.gradient_scale,
        .beta1 = static_cast<float>(beta1_),
        .one_minus_beta1 = static_cast<float>(1.0 - beta1_),
        .beta2 = static_cast<float>(beta2_),
        .one_minus_beta2 = static_cast<float>(1.0 - beta2_),
        .root_correction = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(beta2_, t))),
        .epsilon = static_cast<float>(epsilon_),
        .step_size = static_cast<float>(lr / (1.0 - std::pow(beta1_, t))),
        .decay = static_cast<float>(lr * scalars.weight_decay)};
  }

  const double beta1_;
  const double beta2_;
  const double epsilon_;
};

}  // namespace

std::unique_ptr<Optimizer> MakeAdamW(const OptimizerSettings& settings) {
  return std::make_unique<AdamW>(settings);
}

}  // namespace syncline
