// Tests of the promises that all optimizers make.
#include "server/optimizer/optimizer.h"

#include <cmath>

#include "server/optimizer/element_reference_test_util.h"

namespace syncline {
namespace {

OptimizerSettings Named(std::string_view name) { return {.name = std::string(name)}; }

// Returns settings with this weight decay, if the optimizer has one. asgd has two.
OptimizerSettings Decaying(std::string_view name, double weight_decay) {
  OptimizerSettings settings = Named(name);
  const std::vector<OptionSpec> specs = OptionsOf(name);
  for (const std::string_view option : {"weight_decay", "lambd"}) {
    if (std::ranges::find(specs, option, &OptionSpec::name) != specs.end()) {
      settings.options[std::string(option)] = weight_decay;
    }
  }
  return settings;
}

TEST(Optimizer, GivesTheSameBitsHoweverABlockIsCutIntoStrips) {
  for (const std::string_view name : OptimizerNames()) {
    ExpectTheSameBitsInAnyCutting(Named(name));
    ExpectTheSameBitsInAnyCutting(Decaying(name, 0.01));
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
    Training run(Decaying(name, 0), std::vector<float>(100, 0.1f));
    for (int step = 0; step < 3; ++step) run.Step(std::vector<float>(100, 0.0f));
    ExpectSameBits(run.weights(), std::vector<float>(100, 0.1f), std::string(name));
  }
}

TEST(Optimizer, AGradientMovesTheWeightAgainstItsSign) {
  for (const std::string_view name : OptimizerNames()) {
    Training run(Decaying(name, 0), std::vector<float>(64, 1.0f));
    std::vector<float> gradient(64, 0.5f);
    gradient[1] = -0.5f;
    for (int step = 0; step < 3; ++step) run.Step(gradient);
    EXPECT_LT(run.weights()[0], 1.0f) << name;
    EXPECT_GT(run.weights()[1], 1.0f) << name;
  }
}

// Weight decay is not negated, because it is not part of the gradient.
TEST(Optimizer, MaximizeIsTheSameWithTheGradientNegated) {
  for (const std::string_view name : OptimizerNames()) {
    OptimizerSettings up = Decaying(name, 0.01);
    up.options["maximize"] = 1;
    Training climbs(up, std::vector<float>(1000, 0.1f), {20, 50});
    Training plain(Decaying(name, 0.01), std::vector<float>(1000, 0.1f), {20, 50});
    std::mt19937 random(7);
    for (int step = 0; step < 5; ++step) {
      std::vector<float> gradient = MixedGradient(random, 1000);
      climbs.Step(gradient);
      for (float& g : gradient) g = -g;
      plain.Step(gradient);
    }
    ExpectSameBits(climbs.weights(), plain.weights(), std::string(name));
  }
}

TEST(Optimizer, AnEmptyStripIsNoWork) {
  for (const std::string_view name : OptimizerNames()) {
    const auto optimizer = *MakeOptimizer(Named(name));
    const std::vector<float*> state(optimizer->slots().size());
    const TensorShape shape({{0}});
    const TensorReduction* tensor = optimizer->tensor_reduction();
    const JobReduction* job = optimizer->job_reduction();
    std::vector<float> factors(tensor == nullptr ? 0 : tensor->Factors(shape));
    std::vector<double> figures(tensor == nullptr ? 0 : tensor->Figures(shape));
    const std::vector<double> memory(job == nullptr ? 0 : job->Memory());
    optimizer->Apply(
        {.learning_rate = 0.1}, {.state = state},
        {.shape = shape, .factors = factors, .figures = figures, .job_memory = memory});
  }
}

TEST(OptimizerDeathTest, RefusesAMissingStateArray) {
  std::vector<float> weights(4);
  const std::vector<float> gradient(4);
  const TensorShape shape({{4}});
  for (const std::string_view name : {"adam", "nadam", "radam", "adagrad", "rmsprop",
                                      "adadelta", "adamax", "asgd", "rprop", "lion"}) {
    EXPECT_DEATH(
        (*MakeOptimizer(Named(name)))
            ->Apply({}, {.gradient = gradient, .master = weights}, {.shape = shape}),
        "CHECK failed")
        << name;
  }
}

}  // namespace
}  // namespace syncline
