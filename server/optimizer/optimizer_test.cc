// What every optimizer promises, whatever its formula.
#include "server/optimizer/optimizer.h"

#include <cmath>

#include "server/optimizer/element_reference_test_util.h"

namespace syncline {
namespace {

OptimizerSettings Named(std::string_view name, OptionValues options = {}) {
  return {.name = std::string(name), .options = std::move(options)};
}

// Without weight decay, which all have.
OptimizerSettings Undecayed(std::string_view name) {
  return Named(name, {{"weight_decay", 0}});
}

TEST(Optimizer, GivesTheSameBitsHoweverABlockIsCutIntoStrips) {
  for (const std::string_view name : OptimizerNames()) {
    ExpectTheSameBitsInAnyCutting(Named(name));
    ExpectTheSameBitsInAnyCutting(Named(name, {{"weight_decay", 0.01}}));
  }
}

TEST(Optimizer, GradientScaleOfAPowerOfTwoUndoesLossScalingExactly) {
  for (const std::string_view name : OptimizerNames()) {
    std::mt19937 random(6);
    Training plain(Named(name), std::vector<float>(1000, 1.0f));
    Training scaled(Named(name), std::vector<float>(1000, 1.0f));
    scaled.scalars.gradient_scale = 1.0f / 1024.0f;
    for (int step = 0; step < 3; ++step) {
      std::vector<float> gradient = MixedGradient(random, 1000);
      for (float& g : gradient) g = std::abs(g) < 1e-30f ? 0.0f : g;
      plain.Step(gradient);
      for (float& g : gradient) g *= 1024.0f;
      scaled.Step(gradient);
    }
    ExpectSameBits(scaled.weights(), plain.weights(), std::string(name));
  }
}

TEST(Optimizer, AZeroGradientWithoutDecayChangesNothing) {
  for (const std::string_view name : OptimizerNames()) {
    Training run(Undecayed(name), std::vector<float>(100, 0.1f));
    for (int step = 0; step < 3; ++step) run.Step(std::vector<float>(100, 0.0f));
    ExpectSameBits(run.weights(), std::vector<float>(100, 0.1f), std::string(name));
  }
}

TEST(Optimizer, AGradientMovesTheWeightAgainstItsSign) {
  for (const std::string_view name : OptimizerNames()) {
    Training run(Undecayed(name), std::vector<float>(64, 1.0f));
    std::vector<float> gradient(64, 0.5f);
    gradient[1] = -0.5f;
    for (int step = 0; step < 3; ++step) run.Step(gradient);
    EXPECT_LT(run.weights()[0], 1.0f) << name;
    EXPECT_GT(run.weights()[1], 1.0f) << name;
  }
}

TEST(Optimizer, AnEmptyStripIsNoWork) {
  for (const std::string_view name : OptimizerNames()) {
    const auto optimizer = *MakeOptimizer(Named(name));
    const std::vector<float*> state(optimizer->slots().size());
    const TensorShape shape({{0}});
    optimizer->Apply({.learning_rate = 0.1}, {.state = state}, {.shape = shape});
  }
}

TEST(OptimizerDeathTest, RefusesAMissingStateArray) {
  std::vector<float> weights(4);
  const std::vector<float> gradient(4);
  const TensorShape shape({{4}});
  for (const std::string_view name :
       {"adam", "nadam", "radam", "adagrad", "rmsprop", "lion"}) {
    EXPECT_DEATH(
        (*MakeOptimizer(Named(name)))
            ->Apply({}, {.gradient = gradient, .master = weights}, {.shape = shape}),
        "CHECK failed")
        << name;
  }
}

}  // namespace
}  // namespace syncline
