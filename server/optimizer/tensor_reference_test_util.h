// Helpers for tests. They compare an optimizer of whole tensors with a float64 reference.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/optimizer/training_test_util.h"

namespace syncline {

using Shape = std::vector<uint64_t>;

inline std::vector<float> NormalValues(size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (float& value : values) value = normal(random);
  return values;
}

// Return values that are exact in FP32, so that any program can compute golden numbers
// with them.
inline std::vector<float> GoldenWeights(size_t n) {
  std::vector<float> weights(n);
  for (size_t i = 0; i < n; ++i) {
    weights[i] = (static_cast<float>(i * 29 % 13) - 6) / 4;
  }
  return weights;
}
inline std::vector<float> GoldenGradient(size_t n, size_t step) {
  std::vector<float> gradient(n);
  for (size_t i = 0; i < n; ++i) {
    gradient[i] = (static_cast<float>((i * 37 + step * 11) % 17) - 8) / 8;
  }
  return gradient;
}

// Returns the weights of `shape` after `steps` golden steps.
inline std::vector<float> GoldenRun(const OptimizerSettings& settings, const Shape& shape,
                                    size_t steps) {
  const size_t n = TensorShape(shape).elements();
  Training training(settings, GoldenWeights(n), shape);
  for (size_t step = 1; step <= steps; ++step) training.Step(GoldenGradient(n, step));
  return training.weights();
}

// Returns the root mean square of the difference, relative to that of `want`.
inline double RelativeError(std::span<const float> got, std::span<const double> want) {
  double error = 0;
  double size = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    error += (got[i] - want[i]) * (got[i] - want[i]);
    size += want[i] * want[i];
  }
  return std::sqrt(error / size);
}

inline double NormOf(std::span<const double> values) {
  double squares = 0;
  for (const double value : values) squares += value * value;
  return std::sqrt(squares);
}

// Returns the optimizer's error relative to `reference`, after training on random
// gradients of very different sizes. A Reference has the fields `weights` and `shape`,
// and Step(t, gradient), which gets the scaled gradient.
template <typename Reference>
double ErrorAfter(size_t steps, const OptimizerSettings& settings, const Shape& shape,
                  Reference reference) {
  const size_t n = TensorShape(shape).elements();
  const std::vector<float> start = NormalValues(n, 11);
  reference.weights.assign(start.begin(), start.end());
  reference.shape = shape;
  Training training(settings, start, shape);
  training.scalars.gradient_scale = 0.25f;
  for (size_t step = 1; step <= steps; ++step) {
    std::vector<float> gradient = NormalValues(n, 1000 + static_cast<uint32_t>(step));
    for (size_t i = 0; i < n; ++i) gradient[i] *= i % 7 == 0 ? 1e-3f : 1.0f + i % 5;
    training.Step(gradient);
    std::vector<double> scaled(gradient.begin(), gradient.end());
    for (double& value : scaled) value *= 0.25;
    reference.Step(static_cast<double>(step), scaled);
  }
  return RelativeError(training.weights(), reference.weights);
}

// Expects the same weights with strips of several sizes.
inline void ExpectSameBitsInAnyStrips(const OptimizerSettings& settings,
                                      const Shape& shape) {
  const size_t n = TensorShape(shape).elements();
  std::vector<float> want;
  for (const size_t strip : {size_t{kTileElements}, size_t{4096}, size_t{999}}) {
    Training training(settings, NormalValues(n, 5), shape);
    for (uint32_t step = 0; step < 4; ++step) training.Step(NormalValues(n, step), strip);
    if (want.empty()) want = training.weights();
    EXPECT_EQ(training.weights(), want) << "strips of " << strip;
  }
}

}  // namespace syncline
