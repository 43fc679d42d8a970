#include "server/optimizer/sophia.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "server/optimizer/element_reference_test_util.h"

namespace syncline {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// The authors' formulas, which multiply by bs at each step.
struct SophiaReference {
  void Hessian(double g) { hessian = 0.99 * hessian + (1 - 0.99) * g * g; }
  void Update(double g) {
    p *= 1 - 1e-3 * 0.1;
    mean = 0.965 * mean + (1 - 0.965) * g;
    const double ratio =
        std::min(1.0, std::abs(mean) / (0.04 * kBatch * hessian + 1e-15));
    p -= 1e-3 * std::copysign(ratio, mean);
  }

  void Step(uint64_t update, double g) {
    if (update % 11 == 0) {
      Hessian(g);
    } else {
      Update(g);
    }
  }

  static constexpr double kBatch = 12;
  double p = 0;
  double mean = 0;
  double hessian = 0;
};

const OptimizerSettings kSophia = {.name = "sophia", .options = {{"lr", 1e-3}}};

// Makes 1,000 updates, with a Hessian estimate before every ten of them. Rounding the
// weights to FP32 at each update alone costs 1e-6 of their size. So the limit is the
// error of a float64 loop that rounds nothing but the weights.
TEST(Sophia, IsTheAuthorsFormulaWhenTheBatchIsConstant) {
  constexpr size_t kElements = 509;
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> weights(kElements);
  for (float& weight : weights) weight = normal(random);
  std::vector<SophiaReference> exact(kElements);
  for (size_t i = 0; i < kElements; ++i) exact[i].p = weights[i];
  std::vector<SophiaReference> stored = exact;
  Training run(kSophia, weights);
  run.scalars.samples = SophiaReference::kBatch;
  const ContributionPlan plan = (*MakeOptimizer(kSophia))->contributions();
  for (uint64_t update = 0; update < 1100; ++update) {
    run.scalars.contribution = plan.KindAt(update);
    const std::vector<float> gradient = MixedGradient(random, kElements);
    run.Step(gradient);
    for (size_t i = 0; i < kElements; ++i) {
      exact[i].Step(update, gradient[i]);
      stored[i].Step(update, gradient[i]);
      stored[i].p = static_cast<float>(stored[i].p);
    }
  }
  std::vector<double> want;
  std::vector<float> floor;
  for (const auto& element : exact) want.push_back(element.p);
  for (const auto& element : stored) floor.push_back(static_cast<float>(element.p));
  EXPECT_LT(Distance(run.weights(), want), 1.2 * Distance(floor, want));
}

TEST(Sophia, AHessianEstimateChangesOnlyTheHessian) {
  Training run(kSophia, {1.0f, -2.0f});
  run.Step(std::vector<float>{0.5f, 0.5f});
  const std::vector<float> weights = run.weights();
  const std::vector<float> mean = run.state(0);
  run.scalars.contribution = ContributionKind::kHessian;
  run.scalars.samples = 8;
  run.scalars.gradient_scale = 0.5f;
  run.Step(std::vector<float>{4.0f, -2.0f});
  EXPECT_EQ(run.weights(), weights);
  EXPECT_EQ(run.state(0), mean);
  const auto fresh = static_cast<float>(1 - 0.99);
  EXPECT_EQ(run.state(1), (std::vector<float>{fresh * 32.0f, fresh * 8.0f}));
}

TEST(Sophia, WithoutCurvatureAStepHasTheLengthOfTheLearningRate) {
  OptimizerSettings settings = kSophia;
  settings.options["weight_decay"] = 0;
  Training run(settings, {1.0f, 1.0f, 1.0f});
  run.Step(std::vector<float>{1e-6f, -100.0f, 0.0f});
  EXPECT_EQ(run.weights(), (std::vector<float>{1.0f - 1e-3f, 1.0f + 1e-3f, 1.0f}));
}

TEST(Sophia, AsksForAHessianEstimateBeforeEachIntervalOfUpdates) {
  OptimizerSettings settings = kSophia;
  settings.options["hessian_interval"] = 2;
  const ContributionPlan plan = (*MakeOptimizer(settings))->contributions();
  std::string kinds;
  for (uint64_t update = 0; update < 7; ++update) {
    kinds += plan.KindAt(update) == ContributionKind::kHessian ? 'h' : 'g';
  }
  EXPECT_EQ(kinds, "hgghggh");
}

TEST(Sophia, GivesTheSameBitsInAnyCutting) { ExpectTheSameBitsInAnyCutting(kSophia); }

TEST(Sophia, RefusesAnIntervalOfNoUpdates) {
  EXPECT_THAT(RefusalOf({.name = "sophia", .options = {{"hessian_interval", 0}}}),
              AllOf(HasSubstr("hessian_interval"), HasSubstr("[1, ")));
}

}  // namespace
}  // namespace syncline
