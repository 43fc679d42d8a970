// Gradient transforms change the mean gradient of a tensor before the optimizer uses it.
// Each is off by default. They always run in this order:
//   scale             loss unscaling and clipping by the global norm, in one factor
//   clip_tensor_norm  g *= min(1, limit / (||g|| + 1e-6)), each tensor for itself
//   clip_value        every element into [-limit, limit]
//   agc               adaptive clipping, row by row
//                     (Brock et al., 2021, arXiv 2102.06171):
//                     ||g_row|| at most agc * max(||w_row||, 1e-3)
//   centralize        minus the mean of the row (Yong et al., 2020, arXiv 2004.01461)
// A row is everything that feeds one output of a layer (TensorShape::rows). A tensor of
// fewer than two dimensions is one row for agc, and is not centralized. Rows of one
// element are not centralized either, because they would become 0.
//
//   const GradientTransforms transforms(values);
//   std::vector<double> figures(transforms.Figures(shape));
//   for (int round = 0; round < transforms.rounds(); ++round) {
//     for (each tile in order) transforms.Reduce(round, strip, shape, figures);
//     transforms.Finish(round, shape, figures);
//   }
//   for (each strip) transforms.Apply(strip, shape, figures);
//
// Thread safety: immutable; the caller owns gradients and statistics. Reproducibility:
// sums are in float64, in an order that depends only on the shape. So an element's result
// depends neither on how Apply is cut into strips nor on the CPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "comm/base/options.h"
#include "server/optimizer/tensor_shape.h"

namespace syncline {

std::span<const OptionSpec> TransformOptions();

// Part of one tensor. Both spans have the same size.
struct GradientStrip {
  std::span<float> gradient = {};  // changed by Apply only
  std::span<const float> master = {};
  uint64_t first_element = 0;  // position in the tensor
  float gradient_scale = 1;    // the factor of the first transform
};

class GradientTransforms {
 public:
  // Values that apply to all elements in the same way.
  struct Limits {
    float scale = 1;
    float value = 0;
  };

  // REQUIRES: `values` are valid for TransformOptions().
  explicit GradientTransforms(const OptionValues& values);

  // Whether there is no transform but the scale, which the optimizer applies itself.
  bool empty() const { return !NeedsTensor() && clip_value_ == 0; }
  // Whether statistics of the whole tensor are needed. Its blocks then live on one shard.
  bool NeedsTensor() const { return rounds() > 0; }

  int rounds() const { return (clip_tensor_norm_ > 0 ? 1 : 0) + (NeedsRows() ? 1 : 0); }
  // Number of float64 values that the rounds share. They are zero before the first round.
  size_t Figures(const TensorShape& shape) const;
  // Adds the part of one whole tile. REQUIRES: tiles come in order.
  void Reduce(int round, const GradientStrip& tile, const TensorShape& shape,
              std::span<double> figures) const;
  void Finish(int round, const TensorShape& shape, std::span<double> figures) const;

  // Transforms the gradient in place; the optimizer's gradient_scale is 1 afterwards.
  void Apply(const GradientStrip& strip, const TensorShape& shape,
             std::span<const double> figures) const;

 private:
  bool NeedsRows() const { return agc_ > 0 || centralize_; }
  bool IsTensorRound(int round) const { return clip_tensor_norm_ > 0 && round == 0; }
  Limits LimitsOf(const GradientStrip& strip, std::span<const double> figures) const;
  double ClipFactor(double gradient_squares, double weight_squares) const;

  const double clip_tensor_norm_;
  const double clip_value_;
  const double agc_;
  const bool centralize_;
};

// Delay compensation (Zheng et al., 2017, DC-ASGD, arXiv 1609.08326). A worker computed
// `gradient` at the weights `backup`. To first order, this computes its gradient at
// `master`:
//   g += strength * g * g * (w - w_backup)
struct DelayedGradient {
  std::span<float> gradient = {};  // changed in place
  std::span<const float> master = {};
  std::span<const float> backup = {};
};
void CompensateDelay(float strength, const DelayedGradient& delayed);

}  // namespace syncline
