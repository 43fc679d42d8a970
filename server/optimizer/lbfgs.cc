#include "server/optimizer/lbfgs.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <vector>

#include "comm/base/check.h"
#include "comm/base/isa.h"
#include "server/optimizer/option_ranges.h"
#include "server/optimizer/reduce.h"

namespace syncline {
namespace {

constexpr size_t kMaxHistory = 20;
constexpr double kLeastCurvature = 1e-10;  // least y.s of a pair that is kept

constexpr std::array kOptions = {
    LearningRate(1),
    OptionSpec{
        .name = "history_size",
        .standard = 10,
        .least = 1,
        .most = kMaxHistory,
        .kind = OptionKind::kWhole,
        .meaning = "pairs of vectors that are kept; each costs 8 bytes per weight"},
    OptionSpec{.name = "tolerance_grad",
               .standard = 1e-7,
               .most = kMaxRate,
               .meaning = "gradients up to this norm change nothing"},
    OptionSpec{.name = "tolerance_change",
               .standard = 1e-9,
               .most = kMaxRate,
               .meaning = "directions that descend less are not taken"}};

// Numbers of the vectors. With a history of m pairs, the slots of state are m steps, m
// differences of gradients, the last gradient and the last step. Dot products number
// vectors the same way, with the gradient of this step as the last one.
struct Vectors {
  size_t history;

  size_t Step(size_t pair) const { return pair; }
  size_t Difference(size_t pair) const { return history + pair; }
  size_t last_gradient() const { return 2 * history; }
  size_t last_step() const { return 2 * history + 1; }
  size_t slots() const { return 2 * history + 2; }
  size_t gradient() const { return slots(); }
  size_t count() const { return slots() + 1; }
};

using SlotName = std::array<char, 14>;
constexpr auto MakeNames(std::string_view prefix) {
  std::array<SlotName, kMaxHistory> names = {};
  for (size_t i = 0; i < kMaxHistory; ++i) {
    std::ranges::copy(prefix, names[i].begin());
    names[i][prefix.size()] = static_cast<char>('0' + i / 10);
    names[i][prefix.size() + 1] = static_cast<char>('0' + i % 10);
  }
  return names;
}
constexpr auto kStepNames = MakeNames("step_");
constexpr auto kDifferenceNames = MakeNames("difference_");

// ---- Dot products ----

// The vectors that every vector is multiplied with.
enum With : size_t { kWithLastGradient, kWithLastStep, kWithGradient, kWiths };

struct DotArrays {
  const float* vector;
  std::array<const float*, kWiths> with;
};

SYNCLINE_KERNEL void DotsBody(size_t n, DotArrays arrays, double* lanes) {
  const float* __restrict vector = arrays.vector;
  for (size_t with = 0; with < kWiths; ++with) {
    const float* __restrict other = arrays.with[with];
    double sums[kSumLanes] = {};
    size_t i = 0;
    for (; i + kSumLanes <= n; i += kSumLanes) {
      for (size_t lane = 0; lane < kSumLanes; ++lane) {
        sums[lane] += static_cast<double>(vector[i + lane]) * other[i + lane];
      }
    }
    for (size_t lane = 0; lane < kSumLanes; ++lane) lanes[lane] = sums[lane];
    for (size_t lane = 0; i + lane < n; ++lane) {
      lanes[lane] += static_cast<double>(vector[i + lane]) * other[i + lane];
    }
    lanes += kSumLanes;
  }
}

SYNCLINE_KERNEL void MagnitudesBody(size_t n, const float* values, double* lanes) {
  double sums[kSumLanes] = {};
  size_t i = 0;
  for (; i + kSumLanes <= n; i += kSumLanes) {
    for (size_t lane = 0; lane < kSumLanes; ++lane) {
      sums[lane] += std::abs(values[i + lane]);
    }
  }
  for (size_t lane = 0; lane < kSumLanes; ++lane) lanes[lane] = sums[lane];
  for (size_t lane = 0; i + lane < n; ++lane) lanes[lane] += std::abs(values[i + lane]);
}

// Number of elements that are multiplied at a time, so that they stay in L2 while each
// vector is multiplied with all three.
constexpr size_t kDotPiece = 8192;

// Dot products over the whole job. The gradient counts as scaled.
class Dots {
 public:
  Dots(Vectors vectors, std::span<const double> sums, double gradient_scale)
      : vectors_(vectors), sums_(sums), scale_(gradient_scale) {}
  static size_t Count(Vectors vectors) { return kWiths * vectors.count() + 1; }

  double operator()(size_t vector, With with) const {
    double factor = vector == vectors_.gradient() ? scale_ : 1;
    if (with == kWithGradient) factor *= scale_;
    return factor * sums_[kWiths * vector + with];
  }
  // Returns the sum of magnitudes of the gradient.
  double magnitudes() const { return std::abs(scale_) * sums_.back(); }
  double gradient_squares() const { return (*this)(vectors_.gradient(), kWithGradient); }

 private:
  Vectors vectors_;
  std::span<const double> sums_;
  double scale_;
};

// ---- The recursion ----

// Numbers that every shard keeps between steps, and the results of the recursion that
// Apply uses.
template <typename Number>
struct JobMemory {
  JobMemory(Vectors vectors, std::span<Number> numbers)
      : steps(numbers[0]),
        kept(numbers[1]),
        newest(numbers[2]),
        scale(numbers[3]),
        moves(numbers[4]),
        stores(numbers[5]),
        gram(numbers.subspan(kHead).first(4 * vectors.history * vectors.history)),
        coefficients(numbers.last(2 * vectors.history + 1)) {}
  static size_t Size(Vectors vectors) {
    return kHead + 4 * vectors.history * vectors.history + 2 * vectors.history + 1;
  }

  Number& steps;           // number of directions since the start or the last reset
  Number& kept;            // number of kept pairs
  Number& newest;          // the pair that was written last
  Number& scale;           // y.s / y.y of `newest`
  Number& moves;           // 1 if this step changes anything, otherwise 0
  Number& stores;          // 1 if this step writes `newest`, otherwise 0
  std::span<Number> gram;  // dot products of the kept vectors
  // Coefficients of this step: one for each kept vector, then that of the gradient.
  std::span<Number> coefficients;

 private:
  static constexpr size_t kHead = 6;
};

class Recursion {
 public:
  Recursion(Vectors vectors, std::span<double> memory)
      : vectors_(vectors), memory_(vectors, memory) {}

  JobMemory<double>& memory() { return memory_; }

  // Adds the last step and the change of the gradient since then as a pair. Replaces the
  // oldest pair if the history is full. Adds nothing if the curvature is too small.
  void AddPair(const Dots& dots) {
    const size_t g = vectors_.gradient();
    const size_t before = vectors_.last_gradient();
    const double curvature = dots(g, kWithLastStep) - dots(before, kWithLastStep);
    if (!(curvature > kLeastCurvature)) return;
    const size_t pair = memory_.kept == 0 ? 0 : (Newest() + 1) % vectors_.history;
    const size_t step = vectors_.Step(pair);
    const size_t difference = vectors_.Difference(pair);
    for (size_t i = 0; i < 2 * vectors_.history; ++i) {
      Set(step, i, dots(i, kWithLastStep));
      Set(difference, i, dots(i, kWithGradient) - dots(i, kWithLastGradient));
    }
    const double squares = dots.gradient_squares() - 2 * dots(before, kWithGradient) +
                           dots(before, kWithLastGradient);
    Set(step, step, dots(vectors_.last_step(), kWithLastStep));
    Set(step, difference, curvature);
    Set(difference, difference, squares);
    memory_.newest = static_cast<double>(pair);
    memory_.kept = std::min<double>(memory_.kept + 1, vectors_.history);
    memory_.scale = curvature / squares;
    memory_.stores = 1;
  }

  // Computes the coefficients of -H g. Returns its dot product with the gradient.
  double MakeDirection(const Dots& dots) {
    std::vector<double> gradient = GradientProducts(dots);
    const std::span<double> q = memory_.coefficients;
    std::ranges::fill(q, 0);
    q.back() = -1;
    const auto product = [&](size_t vector) {  // dot product of q and a kept vector
      double sum = q.back() * gradient[vector];
      for (size_t i = 0; i + 1 < q.size(); ++i) sum += q[i] * Gram(vector, i);
      return sum;
    };
    std::array<double, kMaxHistory> alpha;
    const auto kept = static_cast<size_t>(memory_.kept);
    for (size_t age = 0; age < kept; ++age) {
      const size_t pair = PairOf(age);
      alpha[age] = product(vectors_.Step(pair)) / Curvature(pair);
      q[vectors_.Difference(pair)] -= alpha[age];
    }
    for (double& coefficient : q) coefficient *= kept == 0 ? 1 : memory_.scale;
    for (size_t age = kept; age-- > 0;) {
      const size_t pair = PairOf(age);
      const double beta = product(vectors_.Difference(pair)) / Curvature(pair);
      q[vectors_.Step(pair)] += alpha[age] - beta;
    }
    return std::inner_product(q.begin(), q.end(), gradient.begin(), 0.0);
  }

 private:
  size_t Newest() const { return static_cast<size_t>(memory_.newest); }
  // Returns the pair of this age. The newest pair has age 0.
  size_t PairOf(size_t age) const {
    return (Newest() + vectors_.history - age) % vectors_.history;
  }
  double Gram(size_t a, size_t b) const {
    return memory_.gram[2 * vectors_.history * a + b];
  }
  double Curvature(size_t pair) const {
    return Gram(vectors_.Step(pair), vectors_.Difference(pair));
  }
  void Set(size_t a, size_t b, double product) {
    memory_.gram[2 * vectors_.history * a + b] = product;
    memory_.gram[2 * vectors_.history * b + a] = product;
  }

  // Returns the dot products of the gradient with the kept vectors, including a pair that
  // this step adds, and with itself.
  std::vector<double> GradientProducts(const Dots& dots) const {
    std::vector<double> products;
    for (size_t i = 0; i < 2 * vectors_.history; ++i) {
      products.push_back(dots(i, kWithGradient));
    }
    products.push_back(dots.gradient_squares());
    if (memory_.stores != 0) {
      products[vectors_.Step(Newest())] = dots(vectors_.last_step(), kWithGradient);
      products[vectors_.Difference(Newest())] =
          dots.gradient_squares() - dots(vectors_.last_gradient(), kWithGradient);
    }
    return products;
  }

  const Vectors vectors_;
  JobMemory<double> memory_;
};

// ---- Apply ----

// Number of elements whose steps are computed at a time, so that the sums stay in L1.
constexpr size_t kPiece = 1024;

struct TurnArrays {
  const float* gradient;
  float* last_gradient;
  float* difference;
};

// Replaces the last gradient by this step's, and writes the change to `difference`.
SYNCLINE_KERNEL void TurnBody(float gradient_scale, size_t n, TurnArrays arrays) {
  const float* __restrict gradient = arrays.gradient;
  float* __restrict last_gradient = arrays.last_gradient;
  float* __restrict difference = arrays.difference;
  for (size_t i = 0; i < n; ++i) {
    const float g = gradient[i] * gradient_scale;
    difference[i] = g - last_gradient[i];
    last_gradient[i] = g;
  }
}

SYNCLINE_KERNEL void AddScaledBody(double coefficient, size_t n,
                                   const float* __restrict vector,
                                   double* __restrict sum) {
  for (size_t i = 0; i < n; ++i) sum[i] += coefficient * vector[i];
}

struct MoveArrays {
  const double* sum;
  float* step;
  float* master;
};

SYNCLINE_KERNEL void MoveBody(size_t n, MoveArrays arrays) {
  const double* __restrict sum = arrays.sum;
  float* __restrict step = arrays.step;
  float* __restrict master = arrays.master;
  for (size_t i = 0; i < n; ++i) {
    const auto s = static_cast<float>(sum[i]);
    step[i] = s;
    master[i] += s;
  }
}

class Lbfgs final : public Optimizer, private JobReduction {
 public:
  explicit Lbfgs(const OptionValues& values)
      : vectors_{static_cast<size_t>(OptionOr(kOptions, values, "history_size"))},
        tolerance_grad_(OptionOr(kOptions, values, "tolerance_grad")),
        tolerance_change_(OptionOr(kOptions, values, "tolerance_change")) {}

  std::string_view name() const override { return "lbfgs"; }
  std::vector<StateSlot> slots() const override {
    std::vector<StateSlot> slots(vectors_.slots(), {.kind = SlotKind::kWeights});
    for (size_t pair = 0; pair < vectors_.history; ++pair) {
      slots[vectors_.Step(pair)].name = kStepNames[pair].data();
      slots[vectors_.Difference(pair)].name = kDifferenceNames[pair].data();
    }
    slots[vectors_.last_gradient()].name = "last_gradient";
    slots[vectors_.last_step()].name = "last_step";
    return slots;
  }
  const JobReduction* job_reduction() const override { return this; }

  void Apply(const StepScalars& scalars, const Strip& strip,
             const TensorData& tensor) const override {
    SYNCLINE_CHECK(strip.master.size() == strip.gradient.size());
    const JobMemory<const double> memory(vectors_, tensor.job_memory);
    if (memory.moves == 0) return;
    for (size_t first = 0; first < strip.gradient.size(); first += kPiece) {
      ApplyPiece(scalars, memory, strip, first);
    }
  }

 private:
  size_t Figures() const override { return Dots::Count(vectors_); }
  size_t Memory() const override { return JobMemory<double>::Size(vectors_); }

  void Reduce(const Strip& strip, std::span<double> figures) const override {
    const size_t n = strip.gradient.size();
    for (size_t first = 0; first < n; first += kDotPiece) {
      AddDots(strip, first, std::min(kDotPiece, n - first), figures);
    }
  }

  void Finish(const StepScalars& scalars, std::span<const double> sums,
              std::span<double> memory) const override {
    const Dots dots(vectors_, sums, scalars.gradient_scale);
    Recursion recursion(vectors_, memory);
    auto& state = recursion.memory();
    state.stores = 0;
    // A gradient that is not finite must not get into the history.
    const double norm = std::sqrt(dots.gradient_squares());
    state.moves = std::isfinite(norm) && norm > tolerance_grad_ ? 1 : 0;
    if (state.moves == 0) return;
    double rate = scalars.learning_rate;
    if (state.steps == 0) {
      rate *= std::min(1.0, 1.0 / dots.magnitudes());
    } else {
      recursion.AddPair(dots);
    }
    state.steps += 1;
    const double descent = -recursion.MakeDirection(dots);
    // Resets the history. Without a step no pair is ever added, and with the same history
    // no gradient of this size would ever move the weights.
    if (descent < tolerance_change_) {
      rate = 0;
      state.steps = 0;
      state.kept = 0;
    }
    for (double& coefficient : state.coefficients) coefficient *= rate;
  }

  void AddDots(const Strip& strip, size_t first, size_t n,
               std::span<double> figures) const {
    const float* const gradient = strip.gradient.data() + first;
    const std::array<const float*, kWiths> with = {
        strip.state[vectors_.last_gradient()] + first,
        strip.state[vectors_.last_step()] + first, gradient};
    std::array<std::array<double, kSumLanes>, kWiths> lanes;
    for (size_t i = 0; i < vectors_.count(); ++i) {
      const float* const vector =
          i == vectors_.gradient() ? gradient : strip.state[i] + first;
      Kernel<DotsBody>::Run(n, DotArrays{vector, with}, lanes[0].data());
      for (size_t j = 0; j < kWiths; ++j) {
        figures[kWiths * i + j] += AddLanes(lanes[j]);
      }
    }
    Kernel<MagnitudesBody>::Run(n, gradient, lanes[0].data());
    figures.back() += AddLanes(lanes[0]);
  }

  void ApplyPiece(const StepScalars& scalars, const JobMemory<const double>& memory,
                  const Strip& strip, size_t first) const {
    const size_t n = std::min(kPiece, strip.gradient.size() - first);
    const auto newest = static_cast<size_t>(memory.newest);
    float* const last_gradient = strip.state[vectors_.last_gradient()] + first;
    float* const last_step = strip.state[vectors_.last_step()] + first;
    std::array<float, kPiece> unused;
    float* difference = unused.data();
    if (memory.stores != 0) {
      std::copy_n(last_step, n, strip.state[vectors_.Step(newest)] + first);
      difference = strip.state[vectors_.Difference(newest)] + first;
    }
    Kernel<TurnBody>::Run(
        scalars.gradient_scale, n,
        TurnArrays{strip.gradient.data() + first, last_gradient, difference});
    std::array<double, kPiece> sum = {};
    Kernel<AddScaledBody>::Run(memory.coefficients.back(), n, last_gradient, sum.data());
    for (size_t i = 0; i < 2 * vectors_.history; ++i) {
      if (memory.coefficients[i] == 0) continue;
      Kernel<AddScaledBody>::Run(memory.coefficients[i], n, strip.state[i] + first,
                                 sum.data());
    }
    Kernel<MoveBody>::Run(n,
                          MoveArrays{sum.data(), last_step, strip.master.data() + first});
  }

  const Vectors vectors_;
  const double tolerance_grad_;
  const double tolerance_change_;
};

}  // namespace

std::span<const OptionSpec> LbfgsOptions() { return kOptions; }

std::unique_ptr<Optimizer> MakeLbfgs(const OptionValues& values) {
  return std::make_unique<Lbfgs>(values);
}

}  // namespace syncline
