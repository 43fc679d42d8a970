#include "server/optimizer/lbfgs.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "server/optimizer/tensor_reference_test_util.h"

namespace syncline {
namespace {

using testing::FloatNear;
using testing::HasSubstr;
using testing::Pointwise;

using Vector = std::vector<double>;

double Dot(const Vector& a, const Vector& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}
void AddScaled(double factor, const Vector& a, Vector& sum) {
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += factor * a[i];
}

// The two-loop recursion on whole vectors in float64, as Nocedal and Wright's algorithm
// 7.4 writes it.
struct TwoLoopReference {
  size_t history = 3;
  double rate = 0.8;

  void Step(const Vector& g) {
    double length = rate;
    if (last_gradient.empty()) {
      double magnitudes = 0;
      for (const double value : g) magnitudes += std::abs(value);
      length *= std::min(1.0, 1 / magnitudes);
    } else {
      Vector y = g;
      AddScaled(-1, last_gradient, y);
      if (Dot(y, last_step) > 1e-10) {
        if (pairs.size() == history) pairs.pop_front();
        pairs.push_back({last_step, y});
      }
    }
    last_gradient = g;
    last_step = Direction(g);
    for (double& value : last_step) value *= length;
    AddScaled(1, last_step, weights);
  }

  Vector Direction(const Vector& g) const {
    Vector q(g.size());
    AddScaled(-1, g, q);
    Vector alpha(pairs.size());
    for (size_t i = pairs.size(); i-- > 0;) {
      alpha[i] = Dot(pairs[i].s, q) / Dot(pairs[i].s, pairs[i].y);
      AddScaled(-alpha[i], pairs[i].y, q);
    }
    if (!pairs.empty()) {
      const auto& [s, y] = pairs.back();
      const double scale = Dot(s, y) / Dot(y, y);
      for (double& value : q) value *= scale;
    }
    for (size_t i = 0; i < pairs.size(); ++i) {
      const double beta = Dot(pairs[i].y, q) / Dot(pairs[i].s, pairs[i].y);
      AddScaled(alpha[i] - beta, pairs[i].s, q);
    }
    return q;
  }

  struct Pair {
    Vector s;
    Vector y;
  };
  Vector weights = {};
  std::deque<Pair> pairs = {};
  Vector last_gradient = {};
  Vector last_step = {};
};

// Returns the gradient of sum_i a_i (w_i - b_i)^2 / 2 + 0.1 * sum_i (w_i+1 - w_i)^4, with
// a from 1 to 32 and b around 0.
template <typename Weights>
std::vector<float> GradientAt(const Weights& w) {
  constexpr double kScales[] = {1, 2, 4, 8, 16, 32};
  constexpr double kTargets[] = {1, -1, 0.5, -0.5, 0.25, 2};
  Vector g(w.size());
  for (size_t i = 0; i < w.size(); ++i) g[i] = kScales[i % 6] * (w[i] - kTargets[i % 6]);
  for (size_t i = 0; i + 1 < w.size(); ++i) {
    const double cube = 0.4 * std::pow(double{w[i + 1]} - w[i], 3);
    g[i] -= cube;
    g[i + 1] += cube;
  }
  return {g.begin(), g.end()};
}

OptimizerSettings Lbfgs(double history) {
  return {.name = "lbfgs", .options = {{"lr", 0.8}, {"history_size", history}}};
}

// The weights are those of torch.optim.LBFGS(lr=0.8, max_iter=1) of torch 2.13, on the
// loss above in float64.
TEST(Lbfgs, GivesTheWeightsOfTorch) {
  struct Case {
    double history;
    size_t step;
    std::vector<float> want;
  };
  const Case cases[] = {{3,
                         1,
                         {-1.48515686f, -0.752780916f, 0.0111236639f, 0.694381681f,
                          1.35306335f, -0.431302685f}},
                        {3,
                         2,
                         {-1.3899136f, -0.768575528f, 0.0754075864f, 0.368783444f,
                          0.986122647f, 1.22676654f}},
                        {3,
                         6,
                         {-0.842877167f, -0.794793336f, 0.300567903f, -0.486587321f,
                          0.306668088f, 1.97875138f}},
                        {3,
                         12,
                         {0.47176851f, -0.666000243f, 0.345525212f, -0.479063559f,
                          0.341566355f, 1.94307876f}},
                        {10,
                         6,
                         {-0.844073024f, -0.794656975f, 0.300135486f, -0.483910561f,
                          0.305650686f, 1.98176523f}},
                        {10,
                         25,
                         {0.497836062f, -0.580933984f, 0.362607968f, -0.448649021f,
                          0.341379034f, 1.94814536f}}};
  for (const Case& c : cases) {
    Training training(Lbfgs(c.history), GoldenWeights(6));
    for (size_t step = 0; step < c.step; ++step) {
      training.Step(GradientAt(training.weights()));
    }
    EXPECT_THAT(training.weights(), Pointwise(FloatNear(2e-5f), c.want))
        << "history " << c.history << " after " << c.step;
  }
}

// The optimizer and the reference both get the gradients at the reference's weights.
TEST(Lbfgs, IsTheTwoLoopRecursionOnWholeVectors) {
  for (const size_t n : {6u, 63u, 1024u, 1025u, 70000u}) {
    for (const size_t history : {1u, 3u, 20u}) {
      const std::vector<float> start = NormalValues(n, 4);
      TwoLoopReference reference = {.history = history,
                                    .weights = Vector(start.begin(), start.end())};
      Training training(Lbfgs(static_cast<double>(history)), start);
      training.scalars.gradient_scale = 0.5f;
      // Six weights soon reach the minimum, where gradients are only rounding errors.
      const int steps = n == 6 ? 12 : 30;
      for (int step = 0; step < steps; ++step) {
        std::vector<float> gradient = GradientAt(reference.weights);
        reference.Step(Vector(gradient.begin(), gradient.end()));
        for (float& value : gradient) value *= 2;
        training.Step(gradient);
      }
      EXPECT_LT(RelativeError(training.weights(), reference.weights), 1e-6)
          << n << " weights, history " << history;
    }
  }
}

TEST(Lbfgs, FindsTheMinimumOfALargeProblem) {
  Training training({.name = "lbfgs"}, NormalValues(70000, 4));
  const auto norm = [&] {
    const std::vector<float> gradient = GradientAt(training.weights());
    return NormOf(Vector(gradient.begin(), gradient.end()));
  };
  const double before = norm();
  for (int step = 0; step < 60; ++step) training.Step(GradientAt(training.weights()));
  EXPECT_LT(norm(), 1e-5 * before);
}

TEST(Lbfgs, HasTheSameBitsInAnyStrips) { ExpectSameBitsInAnyStrips(Lbfgs(3), {70000}); }

// One part of the job's weights, on its own shard.
struct Part {
  std::vector<float> weights;
  std::vector<std::vector<float>> state;
  std::vector<double> memory;
};

TEST(Lbfgs, TreatsTensorsOfSeveralShardsAsOneVector) {
  const auto optimizer = *MakeOptimizer(Lbfgs(3));
  const JobReduction& reduction = *optimizer->job_reduction();
  const std::vector<float> start = NormalValues(600, 4);
  Training whole(Lbfgs(3), start);
  std::vector<Part> parts;
  for (const auto& [first, n] : {std::pair{0, 100}, std::pair{100, 500}}) {
    parts.push_back({.weights = {start.begin() + first, start.begin() + first + n},
                     .state = {optimizer->slots().size(), std::vector<float>(n)},
                     .memory = std::vector<double>(reduction.Memory())});
  }
  for (uint64_t step = 1; step <= 20; ++step) {
    const std::vector<float> gradient = GradientAt(whole.weights());
    const StepScalars scalars = {.step = step, .learning_rate = 0.8};
    const auto visit = [&](auto&& use) {
      size_t first = 0;
      for (Part& part : parts) {
        std::vector<float*> state;
        for (auto& slot : part.state) state.push_back(slot.data());
        const size_t n = part.weights.size();
        use(part, Strip{.gradient = std::span(gradient).subspan(first, n),
                        .master = part.weights,
                        .state = state});
        first += n;
      }
    };
    std::vector<double> sums(reduction.Figures());
    visit([&](Part&, const Strip& strip) { reduction.Reduce(strip, sums); });
    visit([&](Part& part, const Strip& strip) {
      reduction.Finish(scalars, sums, part.memory);
      const TensorShape shape(Shape{part.weights.size()});
      optimizer->Apply(scalars, strip, {.shape = shape, .job_memory = part.memory});
    });
    whole.Step(gradient);
  }
  EXPECT_EQ(parts[0].memory, parts[1].memory);
  std::vector<float> got = parts[0].weights;
  got.insert(got.end(), parts[1].weights.begin(), parts[1].weights.end());
  EXPECT_LT(RelativeError(got, Vector(whole.weights().begin(), whole.weights().end())),
            1e-6);
}

TEST(Lbfgs, KeepsNoPairWithoutCurvature) {
  Training training(Lbfgs(3), {1, 2});
  training.Step(std::vector<float>{1, 1});
  training.Step(std::vector<float>{2, 2});  // larger after a step downhill: y.s < 0
  EXPECT_EQ(training.state(0), (std::vector<float>{0, 0}));
  // Both steps are plain ones: half of (1, 1), then (2, 2), times the rate.
  EXPECT_THAT(training.weights(),
              Pointwise(FloatNear(1e-6f), std::vector<float>{1 - 2.0f, 2 - 2.0f}));
}

TEST(Lbfgs, ChangesNothingForGradientsThatAreTinyOrNotFinite) {
  for (const float value : {0.0f, 5e-8f, std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()}) {
    Training training(Lbfgs(3), {1, 2});
    Training calm(Lbfgs(3), {1, 2});
    for (int step = 0; step < 5; ++step) {
      training.Step(GradientAt(training.weights()));
      calm.Step(GradientAt(calm.weights()));
      training.Step(std::vector<float>{value, value});
    }
    EXPECT_EQ(training.weights(), calm.weights()) << value;
  }
}

TEST(Lbfgs, TakesNoStepThatHardlyDescends) {
  Training training(Lbfgs(3), {1, 2});
  training.Step(std::vector<float>{1e-5f, 1e-5f});  // d.g = -2e-10
  EXPECT_EQ(training.weights(), (std::vector<float>{1, 2}));
  training.Step(std::vector<float>{1, 0});
  EXPECT_LT(training.weights()[0], 0.5f);
}

// A short step with a small gradient is followed by a gradient across it, as happens with
// mini-batches. y.s is 4.9e-10, so the pair is kept. With its scale y.s / y.y no gradient
// descends by 1e-9.
TEST(Lbfgs, BeginsAnewWhenItsHistoryKeepsItWhereItIs) {
  OptimizerSettings settings = Lbfgs(3);
  settings.options["lr"] = 1e-3;
  Training training(settings, {1, 2});
  training.Step(std::vector<float>{7e-4f, 0});
  training.Step(std::vector<float>{0, 1});
  EXPECT_EQ(training.weights()[1], 2);
  for (int step = 0; step < 4; ++step) training.Step(std::vector<float>{0, 1});
  EXPECT_NEAR(training.weights()[1], 2 - 4e-3, 1e-6);
}

TEST(Lbfgs, LetsGroupsBeFrozenOnly) {
  EXPECT_TRUE(ValidateGroup({.name = "lbfgs"}, {}).ok());
  EXPECT_TRUE(ValidateGroup({.name = "lbfgs"}, {.frozen = true}).ok());
  const GroupOptions refused[] = {
      {.learning_rate_scale = 0.5}, {.options = {{"lr", 0.1}}}, {.state = "bf16"}};
  for (const GroupOptions& group : refused) {
    const auto status = ValidateGroup({.name = "lbfgs"}, group);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("frozen"));
    EXPECT_TRUE(ValidateGroup({.name = "lamb"}, group).ok());
  }
}

TEST(Lbfgs, NamesEverySlotOnce) {
  const auto slots = (*MakeOptimizer(Lbfgs(20)))->slots();
  ASSERT_EQ(slots.size(), 42u);
  std::vector<std::string> names;
  for (const StateSlot& slot : slots) {
    EXPECT_EQ(slot.kind, SlotKind::kWeights);
    names.emplace_back(slot.name);
  }
  EXPECT_EQ(names[0], "step_00");
  EXPECT_EQ(names[39], "difference_19");
  std::ranges::sort(names);
  EXPECT_EQ(std::ranges::adjacent_find(names), names.end());
}

}  // namespace
}  // namespace syncline
