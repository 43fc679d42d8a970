// Helpers for tests. They compare an optimizer that treats each element alone with a
// plain loop over torch's formulas.
//
//   struct SignReference {
//     explicit SignReference(const OptimizerSettings& settings);
//     template <typename Real>
//     void Step(int t, Real gradient, Element<Real>& e) const;
//   };
//   ExpectAsExactAsAPlainLoop<SignReference>({.name = "sign"});
//
// Step follows the order of operations of torch's single-tensor loops, with coefficients
// in double; Real is double for the oracle and float for the plain loop.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/optimizer/training_test_util.h"

namespace syncline {

// A weight and its optimizer state.
template <typename Real>
struct Element {
  Real p = 0;
  Real m = 0;
  Real v = 0;
  Real extra = 0;
};

inline double Option(const OptimizerSettings& settings, std::string_view name) {
  return OptionOr(OptionsOf(settings.name), settings.options, name);
}

// Weight decay as the options say, decoupled or not.
struct DecayReference {
  explicit DecayReference(const OptimizerSettings& settings)
      : lr(Option(settings, "lr")),
        weight_decay(Option(settings, "weight_decay")),
        decoupled(Option(settings, "decoupled") != 0) {}

  template <typename Real>
  Real Apply(Real gradient, Element<Real>& e) const {
    if (!decoupled) return gradient + Real(weight_decay) * e.p;
    e.p *= Real(1 - lr * weight_decay);
    return gradient;
  }

  double lr;
  double weight_decay;
  bool decoupled;
};

inline std::string Describe(const OptimizerSettings& settings) {
  return settings.name + " " + testing::PrintToString(settings.options);
}

// ---- Golden weights ----

// Each case trains four weights. `want` are the weights that torch 2.13 computes.
struct GoldenCase {
  OptimizerSettings settings = {};
  std::vector<float> want = {};
  int steps = 5;
};

inline void ExpectGolden(const GoldenCase& golden) {
  Training run(golden.settings, {1.0f, -0.5f, 0.25f, 3.0f});
  for (int t = 1; t <= golden.steps; ++t) {
    run.Step(std::vector<float>{0.1f * static_cast<float>(t), -0.2f,
                                0.3f / static_cast<float>(t),
                                t % 2 == 1 ? 1e-3f : -1e-3f});
  }
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(run.weights()[i], golden.want[i],
                3e-7 * std::max(1.0f, std::abs(golden.want[i])))
        << Describe(golden.settings) << " " << i;
  }
}

// ---- Against float64 ----

// Returns gradients of mixed scale, including denormals and zeros.
inline std::vector<float> MixedGradient(std::mt19937& random, size_t n) {
  std::normal_distribution<float> normal;
  std::vector<float> gradient(n);
  for (size_t i = 0; i < n; ++i) {
    gradient[i] = std::ldexp(normal(random), -static_cast<int>(i % 31));
    if (i % 41 == 40) gradient[i] = i % 2 == 0 ? 0.0f : 1e-40f;
  }
  return gradient;
}

// Results of 1,000 steps that start with the same weights.
struct LongRun {
  std::vector<float> kernel = {};
  std::vector<float> plain_fp32 = {};
  std::vector<double> exact = {};
};

template <typename Reference>
LongRun Train1000Steps(const OptimizerSettings& settings) {
  constexpr size_t kElements = 509;
  std::mt19937 random(99);
  std::normal_distribution<float> normal;
  std::vector<float> weights(kElements);
  for (float& weight : weights) weight = normal(random);
  std::vector<Element<double>> exact;
  std::vector<Element<float>> plain;
  for (const float weight : weights) {
    exact.push_back({.p = weight});
    plain.push_back({.p = weight});
  }
  const Reference reference(settings);
  Training run(settings, weights);
  for (int t = 1; t <= 1000; ++t) {
    const std::vector<float> gradient = MixedGradient(random, kElements);
    run.Step(gradient);
    for (size_t i = 0; i < kElements; ++i) {
      reference.template Step<double>(t, gradient[i], exact[i]);
      reference.template Step<float>(t, gradient[i], plain[i]);
    }
  }
  LongRun result = {.kernel = run.weights()};
  for (const auto& element : exact) result.exact.push_back(element.p);
  for (const auto& element : plain) result.plain_fp32.push_back(element.p);
  return result;
}

inline double RootMeanSquare(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return std::sqrt(sum / static_cast<double>(values.size()));
}
inline double Distance(const std::vector<float>& got, const std::vector<double>& exact) {
  std::vector<double> errors(got.size());
  for (size_t i = 0; i < got.size(); ++i) errors[i] = got[i] - exact[i];
  return RootMeanSquare(errors);
}

// Expects that the kernel's error against float64 is at most twice that of the plain
// loop.
template <typename Reference>
void ExpectAsExactAsAPlainLoop(const OptimizerSettings& settings) {
  const LongRun run = Train1000Steps<Reference>(settings);
  const double kernel = Distance(run.kernel, run.exact);
  const double plain = Distance(run.plain_fp32, run.exact);
  EXPECT_LE(kernel, std::max(2 * plain, 1e-7 * RootMeanSquare(run.exact)))
      << Describe(settings);
  testing::Test::RecordProperty(settings.name + "_kernel_over_plain",
                                std::to_string(kernel / plain));
}

// ---- Bits ----

inline void ExpectSameBits(const std::vector<float>& got, const std::vector<float>& want,
                           const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(want[i]))
        << what << " " << i;
  }
}

// Expects the same bits for strips of several sizes. A strip of one element takes the
// kernel's scalar path, so this also compares the vectorised path with the scalar one.
inline void ExpectTheSameBitsInAnyCutting(const OptimizerSettings& settings) {
  const std::vector<float> weights(4099, 0.3f);
  for (const size_t strip : {1u, 7u, 16u, 1000u, 4096u}) {
    std::mt19937 random(5);
    Training whole(settings, weights);
    Training cut(settings, weights);
    for (int step = 0; step < 8; ++step) {
      const std::vector<float> gradient = MixedGradient(random, weights.size());
      whole.Step(gradient);
      cut.Step(gradient, strip);
    }
    ExpectSameBits(cut.weights(), whole.weights(),
                   Describe(settings) + " in strips of " + std::to_string(strip));
  }
}

// ---- Refusals ----

inline std::string RefusalOf(const OptimizerSettings& settings) {
  const absl::Status status = ValidateOptimizer(settings);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << Describe(settings);
  EXPECT_FALSE(MakeOptimizer(settings).ok());
  return std::string(status.message());
}

}  // namespace syncline
