#include "server/optimizer/adafactor.h"

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
    OptionSpec{.name = "lr",
               .standard = 1,
               .most = kMaxRate,
               .meaning =
                   "factor of the relative step; without relative_step the learning "
                   "rate, which then must be given"},
    WeightDecay(0),
    OptionSpec{.name = "eps1",
               .standard = 1e-30,
               .least = kLeastEpsilon,
               .meaning = "added to squares of the gradient"},
    OptionSpec{.name = "eps2",
               .standard = 1e-3,
               .most = kMaxRate,
               .meaning = "least scale of the weights that the step follows"},
    OptionSpec{.name = "clip_threshold",
               .standard = 1,
               .least = kLeastEpsilon,
               .most = kMaxRate,
               .meaning = "largest root mean square of a tensor's step at rate 1"},
    OptionSpec{.name = "decay_rate",
               .standard = 0.8,
               .meaning = "the mean square forgets step t^-decay_rate at step t"},
    Beta("beta1", 0, "memory of the mean step; 0: none is kept"),
    OptionSpec{.name = "scale_parameter",
               .standard = 1,
               .kind = OptionKind::kFlag,
               .meaning = "1: steps follow the root mean square of the weights"},
    OptionSpec{.name = "relative_step",
               .standard = 1,
               .kind = OptionKind::kFlag,
               .meaning = "1: the rate falls with the square root of time, on its own"},
    OptionSpec{.name = "warmup_init",
               .kind = OptionKind::kFlag,
               .meaning = "1: the relative step grows from 1e-6 on"}};

// Number of elements whose directions are computed at a time, so that they stay in L1.
constexpr size_t kPiece = 1024;
static_assert(kPiece % kSumLanes == 0);
using Piece = std::array<float, kPiece>;

// Positions in TensorData::figures. The rows and columns of all matrices follow.
constexpr size_t kAlpha = 0;  // sum of squares of the weights, later alpha
// Sum of squares of the direction, later the direction's factor in the step.
constexpr size_t kDirection = 1;
constexpr size_t kTensorFigures = 2;

// Walks a strip row by row. It runs inside the kernels, because rows of convolutions are
// too short for one kernel call each.
struct Cursor {
  size_t width = 0;  // of a matrix
  size_t height = 0;
  uint64_t row = 0;  // counted over all matrices
  // Column of the row's first element in the strip, counted over all matrices.
  uint64_t column = 0;
  size_t row_of_matrix = 0;
  size_t skipped = 0;  // number of elements of the row before the strip
  size_t offset = 0;   // position of the row in the strip
  size_t count = 0;    // number of elements of the row in the strip
};

Cursor CursorAt(const TensorShape& shape, uint64_t element) {
  const uint64_t width = shape.matrix_columns();
  const uint64_t height = shape.matrix_rows();
  const uint64_t row = element / width;
  return {.width = width,
          .height = height,
          .row = row,
          .column = row / height * width + element % width,
          .row_of_matrix = row % height,
          .skipped = element % width};
}

// Moves to the first row, then from row to row. Returns false at the end of a strip of n
// elements.
SYNCLINE_KERNEL bool Advance(Cursor& cursor, size_t n) {
  if (cursor.count > 0) {
    cursor.offset += cursor.count;
    cursor.column -= cursor.skipped;
    cursor.skipped = 0;
    ++cursor.row;
    if (++cursor.row_of_matrix == cursor.height) {
      cursor.row_of_matrix = 0;
      cursor.column += cursor.width;
    }
  }
  const size_t rest = n - cursor.offset;
  const size_t length = cursor.width - cursor.skipped;
  cursor.count = length < rest ? length : rest;
  return rest > 0;
}

// Returns the sum of squares of a row. Short rows have one running sum, because sixteen
// would cost more than they save.
SYNCLINE_KERNEL double RowSquares(size_t n, const float* row) {
  constexpr size_t kShort = 64;
  double sum = 0;
  size_t i = 0;
  if (n >= kShort) {
    double lanes[kSumLanes] = {};
    for (; i + kSumLanes <= n; i += kSumLanes) {
      for (size_t lane = 0; lane < kSumLanes; ++lane) {
        const double g = row[i + lane];
        lanes[lane] += g * g;
      }
    }
    for (const double lane : lanes) sum += lane;
  }
  for (; i < n; ++i) sum += static_cast<double>(row[i]) * row[i];
  return sum;
}

struct SumArrays {
  const float* gradient;
  double* rows;
  double* columns;
};

SYNCLINE_KERNEL void AddSquaresBody(Cursor cursor, size_t n, SumArrays arrays) {
  while (Advance(cursor, n)) {
    const float* __restrict gradient = arrays.gradient + cursor.offset;
    double* __restrict columns = arrays.columns + cursor.column;
    arrays.rows[cursor.row] += RowSquares(cursor.count, gradient);
    for (size_t i = 0; i < cursor.count; ++i) {
      const double g = gradient[i];
      columns[i] += g * g;
    }
  }
}

struct FactoredArrays {
  const float* gradient;
  const double* rows;
  const double* columns;
  float* direction;
};

SYNCLINE_KERNEL void FactoredBody(Cursor cursor, size_t n, FactoredArrays arrays) {
  while (Advance(cursor, n)) {
    const float* __restrict gradient = arrays.gradient + cursor.offset;
    const double* __restrict columns = arrays.columns + cursor.column;
    float* __restrict direction = arrays.direction + cursor.offset;
    const auto row = static_cast<float>(arrays.rows[cursor.row]);
    // Multiplies by the row's factor first: the product of both factors could overflow
    // where the gradient is tiny.
    for (size_t i = 0; i < cursor.count; ++i) {
      direction[i] = gradient[i] * row * static_cast<float>(columns[i]);
    }
  }
}

struct PlainCoefficients {
  float gradient_scale;
  float fresh;  // weight of this step in the mean square
  float epsilon;
};

constexpr float kLargest = std::numeric_limits<float>::max();

struct PlainArrays {
  const float* gradient;
  float* variance;
  float* direction;
};

SYNCLINE_KERNEL void PlainBody(PlainCoefficients c, size_t n, PlainArrays arrays) {
  const float* __restrict gradient = arrays.gradient;
  float* __restrict variance = arrays.variance;
  float* __restrict direction = arrays.direction;
  for (size_t i = 0; i < n; ++i) {
    const float g = gradient[i] * c.gradient_scale;
    // Squares that no float can hold count as the largest float.
    const float square = kLargest < g * g ? kLargest : g * g;
    const float v = variance[i] + c.fresh * (square + c.epsilon - variance[i]);
    variance[i] = v;
    direction[i] = g / std::sqrt(v);
  }
}

struct StepCoefficients {
  float factor;  // factor of the direction
  float decay;   // alpha * weight_decay
  float beta1;
};

SYNCLINE_KERNEL void StepBody(StepCoefficients c, size_t n,
                              const float* __restrict direction,
                              float* __restrict master) {
  for (size_t i = 0; i < n; ++i) {
    const float p = master[i];
    master[i] = p - (c.decay * p + c.factor * direction[i]);
  }
}

struct MeanArrays {
  const float* direction;
  float* mean;
  float* master;
};

SYNCLINE_KERNEL void MeanStepBody(StepCoefficients c, size_t n, MeanArrays arrays) {
  const float* __restrict direction = arrays.direction;
  float* __restrict mean = arrays.mean;
  float* __restrict master = arrays.master;
  for (size_t i = 0; i < n; ++i) {
    const float p = master[i];
    const float m = c.beta1 * mean[i] + c.factor * direction[i];
    mean[i] = m;
    master[i] = p - (c.decay * p + m);
  }
}

bool IsFactored(const TensorShape& shape) { return shape.dimensions() > 1; }

// Return the number of rows and of columns of all matrices together.
uint64_t AllRows(const TensorShape& shape) {
  return shape.elements() / shape.matrix_columns();
}
uint64_t AllColumns(const TensorShape& shape) {
  return shape.elements() / shape.matrix_rows();
}

template <typename T>
std::span<T> RowsOf(const TensorShape& shape, std::span<T> factors) {
  return factors.first(AllRows(shape));
}
template <typename T>
std::span<T> ColumnsOf(const TensorShape& shape, std::span<T> factors) {
  return factors.subspan(AllRows(shape), AllColumns(shape));
}

class Adafactor final : public Optimizer, private TensorReduction {
 public:
  explicit Adafactor(const OptionValues& values)
      : weight_decay_(OptionOr(kOptions, values, "weight_decay")),
        epsilon1_(OptionOr(kOptions, values, "eps1")),
        epsilon2_(OptionOr(kOptions, values, "eps2")),
        clip_threshold_(OptionOr(kOptions, values, "clip_threshold")),
        decay_rate_(OptionOr(kOptions, values, "decay_rate")),
        beta1_(OptionOr(kOptions, values, "beta1")),
        scales_(OptionOr(kOptions, values, "scale_parameter") != 0),
        relative_(OptionOr(kOptions, values, "relative_step") != 0),
        warms_up_(OptionOr(kOptions, values, "warmup_init") != 0) {}

  std::string_view name() const override { return "adafactor"; }
  std::vector<StateSlot> slots() const override {
    if (beta1_ == 0) return {};
    return {{.name = "mean", .kind = SlotKind::kSigned}};
  }
  const TensorReduction* tensor_reduction() const override { return this; }

  void Apply(const StepScalars& scalars, const Strip& strip,
             const TensorData& tensor) const override {
    SYNCLINE_CHECK(strip.master.size() == strip.gradient.size());
    const double factor = tensor.figures[kDirection];
    const StepCoefficients c = {
        .factor = static_cast<float>((1.0 - beta1_) * factor),
        .decay = static_cast<float>(tensor.figures[kAlpha] * weight_decay_),
        .beta1 = static_cast<float>(beta1_)};
    Piece direction;
    for (size_t first = 0; first < strip.gradient.size(); first += kPiece) {
      const size_t n = std::min(kPiece, strip.gradient.size() - first);
      const uint64_t element = strip.first_element + first;
      const auto gradient = strip.gradient.subspan(first, n);
      float* const master = strip.master.data() + first;
      if (IsFactored(tensor.shape)) {
        FactoredDirection({gradient, element}, tensor, direction);
      } else {
        PlainDirection(scalars, gradient, tensor.factors.data() + element, direction);
      }
      if (beta1_ == 0) {
        Kernel<StepBody>::Run(c, n, direction.data(), master);
      } else {
        Kernel<MeanStepBody>::Run(
            c, n, MeanArrays{direction.data(), strip.state[0] + first, master});
      }
    }
  }

 private:
  struct Part {
    std::span<const float> gradient;
    uint64_t first_element;
  };

  int rounds() const override { return 2; }
  size_t Figures(const TensorShape& shape) const override {
    return kTensorFigures + (IsFactored(shape) ? Factors(shape) : 0);
  }
  size_t Factors(const TensorShape& shape) const override {
    return IsFactored(shape) ? AllRows(shape) + AllColumns(shape) : shape.elements();
  }

  void Reduce(int round, const StepScalars& scalars, const Strip& strip,
              const TensorData& tensor) const override {
    if (round == 1) return AddDirection(scalars, strip, tensor);
    tensor.figures[kAlpha] += SumOfSquares(strip.master);
    if (!IsFactored(tensor.shape)) return;
    const auto sums = tensor.figures.subspan(kTensorFigures);
    const auto rows = RowsOf(tensor.shape, sums);
    const auto columns = ColumnsOf(tensor.shape, sums);
    Kernel<AddSquaresBody>::Run(
        CursorAt(tensor.shape, strip.first_element), strip.gradient.size(),
        SumArrays{strip.gradient.data(), rows.data(), columns.data()});
  }

  void Finish(int round, const StepScalars& scalars,
              const TensorData& tensor) const override {
    const auto elements = static_cast<double>(tensor.shape.elements());
    if (round == 0) {
      const double rms = std::sqrt(tensor.figures[kAlpha] / elements);
      tensor.figures[kAlpha] = RateAt(scalars) * (scales_ ? std::max(epsilon2_, rms) : 1);
      if (IsFactored(tensor.shape)) UpdateFactors(scalars, tensor);
      return;
    }
    const double rms = std::sqrt(tensor.figures[kDirection] / elements);
    tensor.figures[kDirection] =
        tensor.figures[kAlpha] / std::max(1.0, rms / clip_threshold_);
  }

  double RateAt(const StepScalars& scalars) const {
    if (!relative_) return scalars.learning_rate;
    const auto t = static_cast<double>(scalars.step);
    return scalars.learning_rate *
           std::min(warms_up_ ? 1e-6 * t : 1e-2, 1.0 / std::sqrt(t));
  }

  // Returns 1 - b, the weight of this step in the mean square.
  double FreshAt(const StepScalars& scalars) const {
    return std::pow(static_cast<double>(scalars.step), -decay_rate_);
  }

  // Updates R and C with the sums of squares in `figures`, and replaces these sums by the
  // factors of the direction.
  void UpdateFactors(const StepScalars& scalars, const TensorData& tensor) const {
    const TensorShape& shape = tensor.shape;
    const auto figures = tensor.figures.subspan(kTensorFigures);
    const auto rows = RowsOf(shape, tensor.factors);
    const auto columns = ColumnsOf(shape, tensor.factors);
    UpdateMeans(scalars, shape.matrix_columns(), rows, RowsOf(shape, figures));
    UpdateMeans(scalars, shape.matrix_rows(), columns, ColumnsOf(shape, figures));
    const size_t height = shape.matrix_rows();
    for (size_t first = 0; first < rows.size(); first += height) {
      double mean = 0;
      for (const double row : rows.subspan(first, height)) mean += row;
      mean /= static_cast<double>(height);
      for (size_t i = first; i < first + height; ++i) {
        figures[i] = scalars.gradient_scale * std::sqrt(mean / rows[i]);
      }
    }
    for (size_t i = 0; i < columns.size(); ++i) {
      ColumnsOf(shape, figures)[i] = 1.0 / std::sqrt(static_cast<double>(columns[i]));
    }
  }

  void UpdateMeans(const StepScalars& scalars, uint64_t length, std::span<float> means,
                   std::span<const double> sums) const {
    const double fresh = FreshAt(scalars);
    const double scale = scalars.gradient_scale;
    const double share = scale * scale / static_cast<double>(length);
    for (size_t i = 0; i < means.size(); ++i) {
      means[i] = static_cast<float>((1.0 - fresh) * means[i] +
                                    fresh * (share * sums[i] + epsilon1_));
    }
  }

  void AddDirection(const StepScalars& scalars, const Strip& strip,
                    const TensorData& tensor) const {
    RunningSquares squares;
    Piece direction;
    Piece variance;
    for (size_t first = 0; first < strip.gradient.size(); first += kPiece) {
      const size_t n = std::min(kPiece, strip.gradient.size() - first);
      const uint64_t element = strip.first_element + first;
      const auto gradient = strip.gradient.subspan(first, n);
      if (IsFactored(tensor.shape)) {
        FactoredDirection({gradient, element}, tensor, direction);
      } else {
        // Updates a copy of V, because Apply makes the same update again.
        std::ranges::copy(tensor.factors.subspan(element, n), variance.begin());
        PlainDirection(scalars, gradient, variance.data(), direction);
      }
      squares.Add(std::span(direction).first(n));
    }
    tensor.figures[kDirection] += squares.Total();
  }

  static void FactoredDirection(const Part& part, const TensorData& tensor,
                                Piece& direction) {
    const auto factors = tensor.figures.subspan(kTensorFigures);
    const auto rows = RowsOf(tensor.shape, factors);
    const auto columns = ColumnsOf(tensor.shape, factors);
    Kernel<FactoredBody>::Run(CursorAt(tensor.shape, part.first_element),
                              part.gradient.size(),
                              FactoredArrays{part.gradient.data(), rows.data(),
                                             columns.data(), direction.data()});
  }

  void PlainDirection(const StepScalars& scalars, std::span<const float> gradient,
                      float* variance, Piece& direction) const {
    Kernel<PlainBody>::Run(
        PlainCoefficients{.gradient_scale = scalars.gradient_scale,
                          .fresh = static_cast<float>(FreshAt(scalars)),
                          .epsilon = static_cast<float>(epsilon1_)},
        gradient.size(), PlainArrays{gradient.data(), variance, direction.data()});
  }

  const double weight_decay_;
  const double epsilon1_;
  const double epsilon2_;
  const double clip_threshold_;
  const double decay_rate_;
  const double beta1_;
  const bool scales_;
  const bool relative_;
  const bool warms_up_;
};

}  // namespace

std::span<const OptionSpec> AdafactorOptions() { return kOptions; }

absl::Status CheckAdafactor(const OptionValues& values) {
  const bool relative = OptionOr(kOptions, values, "relative_step") != 0;
  if (!relative && OptionOr(kOptions, values, "warmup_init") != 0) {
    return absl::InvalidArgumentError(
        "optimizer 'adafactor': warmup_init needs relative_step, which is 0");
  }
  if (!relative && !values.contains("lr")) {
    return absl::InvalidArgumentError(
        "optimizer 'adafactor': lr must be given where relative_step is 0");
  }
  return absl::OkStatus();
}

std::unique_ptr<Optimizer> MakeAdafactor(const OptionValues& values) {
  return std::make_unique<Adafactor>(values);
}

}  // namespace syncline
