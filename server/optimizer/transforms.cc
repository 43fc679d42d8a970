#include "server/optimizer/transforms.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "comm/base/check.h"
#include "comm/base/isa.h"
#include "server/optimizer/reduce.h"

namespace syncline {
namespace {

constexpr double kMaxLimit = 1e30;
constexpr double kClipEpsilon = 1e-6;  // as torch.nn.utils.clip_grad_norm_
constexpr double kLeastWeightNorm = 1e-3;
constexpr double kLeastGradientNorm = 1e-6;

constexpr std::array kOptions = {
    OptionSpec{.name = "clip_tensor_norm",
               .most = kMaxLimit,
               .meaning = "largest norm of each tensor's gradient; 0: no clipping"},
    OptionSpec{
        .name = "clip_value",
        .most = kMaxLimit,
        .meaning = "largest magnitude of an element of the gradient; 0: no clipping"},
    OptionSpec{.name = "agc",
               .most = kMaxLimit,
               .meaning =
                   "largest norm of a row of the gradient, as a share of the norm of "
                   "the row's weights; 0: no clipping"},
    OptionSpec{.name = "centralize",
               .kind = OptionKind::kFlag,
               .meaning = "1: subtract the mean of each row from the gradient"}};

// Positions in `figures`: those of the tensor, then kRowFigures for each row.
constexpr size_t kTensorScale = 0;  // sum of squares, after Finish the factor
constexpr size_t kTensorFigures = 1;
constexpr size_t kRowGradient = 0;  // sum of squares, after Finish the factor
constexpr size_t kRowMean = 1;      // sum, after Finish the mean of the clipped row
constexpr size_t kRowWeights = 2;   // sum of squares of the weights
constexpr size_t kRowFigures = 3;

using Limits = GradientTransforms::Limits;

// NaN stays NaN, as in torch.clamp.
SYNCLINE_KERNEL float ScaledAndClipped(Limits limits, float gradient) {
  const float g = gradient * limits.scale;
  const float below = g > limits.value ? limits.value : g;
  return below < -limits.value ? -limits.value : below;
}

struct RowLanes {
  double* squares;
  double* sums;
};

SYNCLINE_KERNEL void SumRowBody(Limits limits, size_t n, const float* gradient,
                                RowLanes out) {
  double squares[kSumLanes] = {};
  double sums[kSumLanes] = {};
  size_t i = 0;
  for (; i + kSumLanes <= n; i += kSumLanes) {
    for (size_t lane = 0; lane < kSumLanes; ++lane) {
      const double g = ScaledAndClipped(limits, gradient[i + lane]);
      squares[lane] += g * g;
      sums[lane] += g;
    }
  }
  for (size_t lane = 0; lane < kSumLanes; ++lane) out.squares[lane] = squares[lane];
  for (size_t lane = 0; lane < kSumLanes; ++lane) out.sums[lane] = sums[lane];
  for (size_t lane = 0; i + lane < n; ++lane) {
    const double g = ScaledAndClipped(limits, gradient[i + lane]);
    out.squares[lane] += g * g;
    out.sums[lane] += g;
  }
}

struct Row {
  float factor;
  float mean;
};

SYNCLINE_KERNEL void TransformBody(Limits limits, Row row, size_t n,
                                   float* __restrict gradient) {
  for (size_t i = 0; i < n; ++i) {
    gradient[i] = ScaledAndClipped(limits, gradient[i]) * row.factor - row.mean;
  }
}

struct DelayedArrays {
  float* gradient;
  const float* master;
  const float* backup;
};

SYNCLINE_KERNEL void CompensateBody(float strength, size_t n, DelayedArrays arrays) {
  float* __restrict gradient = arrays.gradient;
  const float* __restrict master = arrays.master;
  const float* __restrict backup = arrays.backup;
  for (size_t i = 0; i < n; ++i) {
    const float g = gradient[i];
    gradient[i] = g + strength * (g * g) * (master[i] - backup[i]);
  }
}

// Visits the part of each row that overlaps [first, first + count).
template <typename Visit>
void ForEachRow(const TensorShape& shape, uint64_t first, size_t count,
                const Visit& visit) {
  if (count == 0) return;
  const uint64_t length = shape.row_elements();
  uint64_t row = first / length;
  uint64_t column = first % length;
  for (size_t offset = 0; offset < count;) {
    const size_t n = std::min<uint64_t>(length - column, count - offset);
    visit(row, offset, n);
    offset += n;
    column = 0;
    ++row;
  }
}

template <typename T>
std::span<T> FiguresOf(uint64_t row, std::span<T> figures) {
  return figures.subspan(kTensorFigures + kRowFigures * row, kRowFigures);
}

// Adds the part of a row that is in one tile. The resulting bits depend on the elements
// only.
void AddRow(Limits limits, std::span<const float> gradient, std::span<double> row) {
  std::array<double, kSumLanes> squares;
  std::array<double, kSumLanes> sums;
  Kernel<SumRowBody>::Run(limits, gradient.size(), gradient.data(),
                          RowLanes{squares.data(), sums.data()});
  row[kRowGradient] += AddLanes(squares);
  row[kRowMean] += AddLanes(sums);
}

}  // namespace

std::span<const OptionSpec> TransformOptions() { return kOptions; }

GradientTransforms::GradientTransforms(const OptionValues& values)
    : clip_tensor_norm_(OptionOr(kOptions, values, "clip_tensor_norm")),
      clip_value_(OptionOr(kOptions, values, "clip_value")),
      agc_(OptionOr(kOptions, values, "agc")),
      centralize_(OptionOr(kOptions, values, "centralize") != 0) {}

size_t GradientTransforms::Figures(const TensorShape& shape) const {
  if (!NeedsTensor()) return 0;
  return kTensorFigures + (NeedsRows() ? kRowFigures * shape.rows() : 0);
}

GradientTransforms::Limits GradientTransforms::LimitsOf(
    const GradientStrip& strip, std::span<const double> figures) const {
  const double clip = clip_tensor_norm_ > 0 ? figures[kTensorScale] : 1;
  return {.scale = static_cast<float>(strip.gradient_scale * clip),
          .value = clip_value_ > 0 ? static_cast<float>(clip_value_)
                                   : std::numeric_limits<float>::infinity()};
}

void GradientTransforms::Reduce(int round, const GradientStrip& tile,
                                const TensorShape& shape,
                                std::span<double> figures) const {
  if (IsTensorRound(round)) {
    const double scale = tile.gradient_scale;
    figures[kTensorScale] += scale * scale * SumOfSquares(tile.gradient);
    return;
  }
  const Limits limits = LimitsOf(tile, figures);
  ForEachRow(shape, tile.first_element, tile.gradient.size(),
             [&](uint64_t row, size_t offset, size_t n) {
               const std::span<double> sums = FiguresOf(row, figures);
               AddRow(limits, tile.gradient.subspan(offset, n), sums);
               if (agc_ > 0)
                 sums[kRowWeights] += SumOfSquares(tile.master.subspan(offset, n));
             });
}

void GradientTransforms::Finish(int round, const TensorShape& shape,
                                std::span<double> figures) const {
  if (IsTensorRound(round)) {
    const double norm = std::sqrt(figures[kTensorScale]);
    figures[kTensorScale] = std::min(1.0, clip_tensor_norm_ / (norm + kClipEpsilon));
    return;
  }
  const auto length = static_cast<double>(shape.row_elements());
  const bool centralizes = centralize_ && shape.dimensions() > 1 && length > 1;
  for (uint64_t row = 0; row < shape.rows(); ++row) {
    const std::span<double> sums = FiguresOf(row, figures);
    const double factor = ClipFactor(sums[kRowGradient], sums[kRowWeights]);
    sums[kRowGradient] = factor;
    sums[kRowMean] = centralizes ? factor * sums[kRowMean] / length : 0;
  }
}

double GradientTransforms::ClipFactor(double gradient_squares,
                                      double weight_squares) const {
  if (agc_ == 0) return 1;
  const double norm = std::sqrt(gradient_squares);
  const double most = agc_ * std::max(std::sqrt(weight_squares), kLeastWeightNorm);
  return norm > most ? most / std::max(norm, kLeastGradientNorm) : 1;
}

void GradientTransforms::Apply(const GradientStrip& strip, const TensorShape& shape,
                               std::span<const double> figures) const {
  const Limits limits = LimitsOf(strip, figures);
  if (!NeedsRows()) {
    Kernel<TransformBody>::Run(limits, Row{.factor = 1, .mean = 0}, strip.gradient.size(),
                               strip.gradient.data());
    return;
  }
  ForEachRow(shape, strip.first_element, strip.gradient.size(),
             [&](uint64_t row, size_t offset, size_t n) {
               const auto own = FiguresOf(row, figures);
               Kernel<TransformBody>::Run(
                   limits,
                   Row{.factor = static_cast<float>(own[kRowGradient]),
                       .mean = static_cast<float>(own[kRowMean])},
                   n, strip.gradient.data() + offset);
             });
}

void CompensateDelay(float strength, const DelayedGradient& delayed) {
  SYNCLINE_CHECK(delayed.master.size() == delayed.gradient.size() &&
                 delayed.backup.size() == delayed.gradient.size());
  Kernel<CompensateBody>::Run(
      strength, delayed.gradient.size(),
      DelayedArrays{delayed.gradient.data(), delayed.master.data(),
                    delayed.backup.data()});
}

}  // namespace syncline
