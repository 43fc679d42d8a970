#include "server/optimizer/sgd.h"

#include <cstddef>

#include "comm/base/check.h"
#include "comm/base/dispatch.h"

namespace syncline {
namespace {

struct Coefficients {
  float gradient_scale;
  float weight_decay;
  float momentum;
  float fresh;  // 1 - dampening
  float learning_rate;
};

SYNCLINE_MULTIVERSION void Plain(Coefficients c, size_t n,
                                 const float* __restrict gradient,
                                 float* __restrict master) {
  for (size_t i = 0; i < n; ++i) {
    const float g = gradient[i] * c.gradient_scale + c.weight_decay * master[i];
    master[i] -= c.learning_rate * g;
  }
}

struct Arrays {
  const float* gradient;
  float* master;
  float* buffer;
};

SYNCLINE_MULTIVERSION void WithMomentum(Coefficients c, size_t n, Arrays arrays) {
  const float* __restrict gradient = arrays.gradient;
  float* __restrict master = arrays.master;
  float* __restrict buffer = arrays.buffer;
  for (size_t i = 0; i < n; ++i) {
    const float g = gradient[i] * c.gradient_scale + c.weight_decay * master[i];
    const float b = c.momentum * buffer[i] + c.fresh * g;
    buffer[i] = b;
    master[i] -= c.learning_rate * b;
  }
}

SYNCLINE_MULTIVERSION void WithNesterov(Coefficients c, size_t n, Arrays arrays) {
  const float* __restrict gradient = arrays.gradient;
  float* __restrict master = arrays.master;
  float* __restrict buffer = arrays.buffer;
  for (size_t i = 0; i < n; ++i) {
    const float g = gradient[i] * c.gradient_scale + c.weight_decay * master[i];
    const float b = c.momentum * buffer[i] + c.fresh * g;
    buffer[i] = b;
    master[i] -= c.learning_rate * (g + c.momentum * b);
  }
}

class Sgd final : public Optimizer {
 public:
  explicit Sgd(const OptimizerSettings& settings)
      : momentum_(static_cast<float>(settings.momentum)),
        fresh_(static_cast<float>(1.0 - settings.dampening)),
        nesterov_(settings.nesterov) {}

  std::string_view name() const override { return "sgd"; }
  int StateSlots() const override { return momentum_ == 0 ? 0 : 1; }

  void Apply(const StepScalars& scalars, const TileSpans& tile) const override {
    const size_t n = tile.gradient.size();
    SYNCLINE_CHECK(tile.master.size() == n);
    Coefficients c = {.gradient_scale = scalars.gradient_scale,
                      .weight_decay = static_cast<float>(scalars.weight_decay),
                      .momentum = momentum_,
                      .fresh = fresh_,
                      .learning_rate = static_cast<float>(scalars.learning_rate)};
    if (momentum_ == 0) {
      Plain(c, n, tile.gradient.data(), tile.master.data());
      return;
    }
    if (scalars.step == 1) c.fresh = 1;  // the buffer is zero, so b becomes g
    const Arrays arrays = {tile.gradient.data(), tile.master.data(), tile.state[0]};
    SYNCLINE_CHECK(n == 0 || arrays.buffer != nullptr);
    if (nesterov_ == Nesterov::kOn) {
      WithNesterov(c, n, arrays);
    } else {
      WithMomentum(c, n, arrays);
    }
  }

 private:
  const float momentum_;
  const float fresh_;
  const Nesterov nesterov_;
};

}  // namespace

std::unique_ptr<Optimizer> MakeSgd(const OptimizerSettings& settings) {
  return std::make_unique<Sgd>(settings);
}

}  // namespace syncline
