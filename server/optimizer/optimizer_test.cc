#include "server/optimizer/optimizer.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

// An optimizer with the weights and the state of one training run.
class Training {
 public:
  Training(const OptimizerSettings& settings, std::vector<float> weights)
      : settings_(settings),
        optimizer_(*MakeOptimizer(settings)),
        weights_(std::move(weights)),
        state_(2, std::vector<float>(weights_.size(), 0.0f)) {}

  // Applies one step in strips of `strip` elements.
  void Step(const std::vector<float>& gradient, size_t strip, float gradient_scale) {
    StepScalars scalars = ScalarsFor(settings_, {}, ++step_);
    scalars.gradient_scale = gradient_scale;
    for (size_t first = 0; first < weights_.size(); first += strip) {
      const size_t n = std::min(strip, weights_.size() - first);
      optimizer_->Apply(scalars,
                        {.gradient = std::span(gradient).subspan(first, n),
                         .master = std::span(weights_).subspan(first, n),
                         .state = {state_[0].data() + first, state_[1].data() + first}});
    }
  }
  void Step(const std::vector<float>& gradient) { Step(gradient, gradient.size(), 1.0f); }

  const std::vector<float>& weights() const { return weights_; }

 private:
  const OptimizerSettings settings_;
  const std::unique_ptr<Optimizer> optimizer_;
  std::vector<float> weights_;
  std::vector<std::vector<float>> state_;
  uint64_t step_ = 0;
};

// The formulas of torch's documentation, one element, in the number type `Real`.
template <typename Real>
class Reference {
 public:
  Reference(const OptimizerSettings& settings, Real weight) : s_(settings), p_(weight) {}

  void Step(Real g) {
    ++t_;
    if (s_.name == "adamw") {
      AdamW(g);
    } else {
      Sgd(g);
    }
  }
  Real weight() const { return p_; }

 private:
  void AdamW(Real g) {
    p_ *= Real(1 - s_.learning_rate * s_.weight_decay);
    m_ = Real(s_.beta1) * m_ + Real(1 - s_.beta1) * g;
    v_ = Real(s_.beta2) * v_ + Real(1 - s_.beta2) * g * g;
    const double correction1 = 1 - std::pow(s_.beta1, t_);
    const double correction2 = std::sqrt(1 - std::pow(s_.beta2, t_));
    p_ -= Real(s_.learning_rate / correction1) *
          (m_ / (std::sqrt(v_) / Real(correction2) + Real(s_.epsilon)));
  }

  void Sgd(Real g) {
    g += Real(s_.weight_decay) * p_;
    if (s_.momentum != 0) {
      m_ = t_ == 1 ? g : Real(s_.momentum) * m_ + Real(1 - s_.dampening) * g;
      g = s_.nesterov == Nesterov::kOn ? g + Real(s_.momentum) * m_ : m_;
    }
    p_ -= Real(s_.learning_rate) * g;
  }

  const OptimizerSettings s_;
  Real p_;
  Real m_ = 0;
  Real v_ = 0;
  int t_ = 0;
};

// Each case trains four weights for five steps; `want` is what torch 1.13 gives.
struct GoldenCase {
  OptimizerSettings settings;
  std::vector<float> want;
};

TEST(Optimizer, GivesTheWeightsOfTorch) {
  const GoldenCase cases[] = {
      {{.name = "sgd", .learning_rate = 0.1, .weight_decay = 0.01},
       {0.845209837f, -0.39770478f, 0.180444762f, 2.98493052f}},
      {{.name = "sgd", .learning_rate = 0.1, .weight_decay = 0.01, .momentum = 0.9},
       {0.670361936f, -0.23118107f, 0.0256293043f, 2.96041489f}},
      {{.name = "sgd", .learning_rate = 0.1, .momentum = 0.9, .dampening = 0.5},
       {0.82100898f, -0.327607989f, 0.0776794851f, 2.99967194f}},
      {{.name = "sgd",
        .learning_rate = 0.1,
        .weight_decay = 0.01,
        .momentum = 0.9,
        .nesterov = Nesterov::kOn},
       {0.549112856f, -0.156393677f, -0.0208401494f, 2.94939613f}},
      {{.name = "adamw", .learning_rate = 0.01, .weight_decay = 0.1},
       {0.946599364f, -0.447604954f, 0.204831451f, 2.97072554f}},
      {{.name = "adamw",
        .learning_rate = 0.01,
        .beta1 = 0.8,
        .beta2 = 0.99,
        .epsilon = 1e-6},
       {0.949866891f, -0.450000197f, 0.207685962f, 2.98659897f}},
  };
  for (const GoldenCase& golden : cases) {
    Training run(golden.settings, {1.0f, -0.5f, 0.25f, 3.0f});
    for (int t = 1; t <= 5; ++t) {
      run.Step({0.1f * static_cast<float>(t), -0.2f, 0.3f / static_cast<float>(t),
                t % 2 == 1 ? 1e-3f : -1e-3f});
    }
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_NEAR(run.weights()[i], golden.want[i],
                  3e-7 * std::max(1.0f, std::abs(golden.want[i])))
          << golden.settings.name << " " << i;
    }
  }
}

// Gradients of mixed scale, also denormal and zero ones.
std::vector<float> Gradient(std::mt19937& random, size_t n) {
  std::normal_distribution<float> normal;
  std::vector<float> gradient(n);
  for (size_t i = 0; i < n; ++i) {
    gradient[i] = std::ldexp(normal(random), -static_cast<int>(i % 31));
    if (i % 41 == 40) gradient[i] = i % 2 == 0 ? 0.0f : 1e-40f;
  }
  return gradient;
}

// Root mean square of the distance to the float64 weights.
struct Errors {
  double kernel = 0;
  double plain_fp32 = 0;
  double scale = 0;
};

Errors ErrorsAfter1000Steps(const OptimizerSettings& settings) {
  constexpr size_t kElements = 509;
  std::mt19937 random(99);
  std::normal_distribution<float> normal;
  std::vector<float> weights(kElements);
  for (float& weight : weights) weight = normal(random);
  std::vector<Reference<double>> exact;
  std::vector<Reference<float>> plain;
  for (const float weight : weights) {
    exact.emplace_back(settings, weight);
    plain.emplace_back(settings, weight);
  }
  Training run(settings, weights);
  for (int step = 0; step < 1000; ++step) {
    const std::vector<float> gradient = Gradient(random, kElements);
    run.Step(gradient);
    for (size_t i = 0; i < kElements; ++i) {
      exact[i].Step(gradient[i]);
      plain[i].Step(gradient[i]);
    }
  }
  Errors errors;
  for (size_t i = 0; i < kElements; ++i) {
    errors.kernel += std::pow(run.weights()[i] - exact[i].weight(), 2);
    errors.plain_fp32 += std::pow(plain[i].weight() - exact[i].weight(), 2);
    errors.scale += std::pow(exact[i].weight(), 2);
  }
  errors.kernel = std::sqrt(errors.kernel / kElements);
  errors.plain_fp32 = std::sqrt(errors.plain_fp32 / kElements);
  errors.scale = std::sqrt(errors.scale / kElements);
  return errors;
}

TEST(Optimizer, After1000StepsIsNoFartherFromFloat64ThanAPlainFp32Loop) {
  const OptimizerSettings cases[] = {
      {.name = "sgd", .learning_rate = 0.01, .weight_decay = 0.01},
      {.name = "sgd", .learning_rate = 0.01, .weight_decay = 0.01, .momentum = 0.9},
      {.name = "sgd", .learning_rate = 0.01, .momentum = 0.9, .nesterov = Nesterov::kOn},
      {.name = "adamw", .learning_rate = 1e-3, .weight_decay = 0.01},
      {.name = "adamw", .learning_rate = 1e-3, .weight_decay = 0.1},
  };
  for (const OptimizerSettings& settings : cases) {
    const Errors errors = ErrorsAfter1000Steps(settings);
    EXPECT_LE(errors.kernel, std::max(1.5 * errors.plain_fp32, 1e-7 * errors.scale))
        << settings.name << " weight_decay " << settings.weight_decay;
    RecordProperty(settings.name + "_kernel_over_plain",
                   std::to_string(errors.kernel / errors.plain_fp32));
  }
}

void ExpectSameBits(const std::vector<float>& got, const std::vector<float>& want) {
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(want[i])) << i;
  }
}

// This file is compiled for the baseline instruction set, the kernels for whatever the
// CPU has.
TEST(Optimizer, KernelsGiveTheBitsOfTheScalarLoopOnEveryCpu) {
  constexpr size_t kElements = 1003;
  const OptimizerSettings adamw = {
      .name = "adamw", .learning_rate = 1e-3, .weight_decay = 0.01};
  const OptimizerSettings sgd = {
      .name = "sgd", .learning_rate = 1e-2, .weight_decay = 0.01, .momentum = 0.9};
  std::mt19937 random(11);
  const std::vector<float> weights = Gradient(random, kElements);
  const std::vector<float> gradient = Gradient(random, kElements);
  Training adamw_training(adamw, weights);
  Training sgd_training(sgd, weights);
  adamw_training.Step(gradient, kElements, 0.3f);
  sgd_training.Step(gradient, kElements, 0.3f);
  std::vector<float> adamw_want(kElements);
  std::vector<float> sgd_want(kElements);
  for (size_t i = 0; i < kElements; ++i) {
    const float g = gradient[i] * 0.3f;
    const float p = weights[i];
    const float m = float(1 - 0.9) * g;
    const float v = float(1 - 0.999) * (g * g);
    const float denominator =
        std::sqrt(v) * float(1 / std::sqrt(1 - 0.999)) + float(1e-8);
    adamw_want[i] =
        p - (float(1e-3 * 0.01) * p + float(1e-3 / (1 - 0.9)) * (m / denominator));
    sgd_want[i] = p - 1e-2f * (g + 0.01f * p);
  }
  ExpectSameBits(adamw_training.weights(), adamw_want);
  ExpectSameBits(sgd_training.weights(), sgd_want);
}

TEST(Optimizer, GivesTheSameBitsHoweverABlockIsCutIntoStrips) {
  for (const std::string_view name : OptimizerNames()) {
    const OptimizerSettings settings = {
        .name = std::string(name), .weight_decay = 0.01, .momentum = 0.9};
    const std::vector<float> weights(4099, 0.3f);
    for (const size_t strip : {1u, 7u, 16u, 1000u, 4096u}) {
      std::mt19937 random(5);
      Training reference(settings, weights);
      Training cut(settings, weights);
      for (int step = 0; step < 3; ++step) {
        const std::vector<float> gradient = Gradient(random, weights.size());
        reference.Step(gradient);
        cut.Step(gradient, strip, 1.0f);
      }
      ExpectSameBits(cut.weights(), reference.weights());
    }
  }
}

TEST(Optimizer, GradientScaleOfAPowerOfTwoUndoesLossScalingExactly) {
  for (const std::string_view name : OptimizerNames()) {
    const OptimizerSettings settings = {.name = std::string(name), .momentum = 0.9};
    std::mt19937 random(6);
    Training plain(settings, std::vector<float>(1000, 1.0f));
    Training scaled(settings, std::vector<float>(1000, 1.0f));
    for (int step = 0; step < 3; ++step) {
      std::vector<float> gradient = Gradient(random, 1000);
      for (float& g : gradient) g = std::abs(g) < 1e-30f ? 0.0f : g;
      plain.Step(gradient);
      for (float& g : gradient) g *= 1024.0f;
      scaled.Step(gradient, 1000, 1.0f / 1024.0f);
    }
    ExpectSameBits(scaled.weights(), plain.weights());
  }
}

TEST(Optimizer, AZeroGradientWithoutDecayChangesNothing) {
  for (const std::string_view name : OptimizerNames()) {
    Training run({.name = std::string(name), .momentum = 0.9},
                 std::vector<float>(100, 0.1f));
    run.Step(std::vector<float>(100, 0.0f));
    ExpectSameBits(run.weights(), std::vector<float>(100, 0.1f));
  }
}

TEST(Optimizer, AnEmptyStripIsNoWork) {
  for (const std::string_view name : OptimizerNames()) {
    (*MakeOptimizer({.name = std::string(name), .momentum = 0.9}))->Apply({}, {});
  }
}

TEST(OptimizerDeathTest, RefusesAMissingStateArray) {
  std::vector<float> weights(4);
  const std::vector<float> gradient(4);
  EXPECT_DEATH((*MakeOptimizer({.name = "adamw"}))
                   ->Apply({}, {.gradient = gradient, .master = weights, .state = {}}),
               "CHECK failed");
}

}  // namespace
}  // namespace syncline
