#include "server/optimizer/lion.h"

#include "server/optimizer/element_reference_test_util.h"

namespace syncline {
namespace {

struct LionReference {
  explicit LionReference(const OptimizerSettings& settings)
      : lr(Option(settings, "lr")),
        weight_decay(Option(settings, "weight_decay")),
        beta1(Option(settings, "beta1")),
        beta2(Option(settings, "beta2")) {}

  template <typename Real>
  void Step(int /*t*/, Real g, Element<Real>& e) const {
    e.p *= Real(1 - lr * weight_decay);
    const Real direction = Real(beta1) * e.m + Real(1 - beta1) * g;
    e.p -= Real(lr) * Real((direction > 0) - (direction < 0));
    e.m = Real(beta2) * e.m + Real(1 - beta2) * g;
  }

  double lr;
  double weight_decay;
  double beta1;
  double beta2;
};

OptimizerSettings Lion(OptionValues options) {
  return {.name = "lion", .options = std::move(options)};
}

// A sign that rounding turned moves a weight by 2 * lr. The test counts such weights, and
// compares the others.
TEST(Lion, After1000StepsIsAsNearToFloat64AsAPlainLoopButForFewSigns) {
  const OptimizerSettings settings = Lion({{"lr", 1e-3}, {"weight_decay", 0.1}});
  LongRun run = Train1000Steps<LionReference>(settings);
  const auto turned = [&](size_t i) {
    const double exact = run.exact[i];
    return std::abs(run.kernel[i] - exact) > 1e-3 ||
           std::abs(run.plain_fp32[i] - exact) > 1e-3;
  };
  int turns = 0;
  for (size_t i = 0; i < run.exact.size(); ++i) {
    if (!turned(i)) continue;
    ++turns;
    run.exact[i] = run.kernel[i] = run.plain_fp32[i] = 0;
  }
  EXPECT_LE(turns, 15);
  EXPECT_LE(Distance(run.kernel, run.exact), 2 * Distance(run.plain_fp32, run.exact));
  testing::Test::RecordProperty("turned_signs", turns);
}

// Computed by hand. The decay uses the old weight, the sign is that of the mean with
// beta1, and the memory is the mean with beta2.
TEST(Lion, GivesTheWeightsOfTheFormula) {
  Training training(
      Lion({{"lr", 0.5}, {"weight_decay", 0.25}, {"beta1", 0.75}, {"beta2", 0.5}}),
      {8, 8, 8});
  training.Step(std::vector<float>{2, -2, 0});
  EXPECT_THAT(training.weights(), testing::ElementsAre(6.5f, 7.5f, 7.0f));
  EXPECT_THAT(training.state(0), testing::ElementsAre(1.0f, -1.0f, 0.0f));
  // 0.75 * 1 - 0.25 * 2 is above zero although the gradient is below zero.
  training.Step(std::vector<float>{-2, 4, 0});
  EXPECT_THAT(training.weights(), testing::ElementsAre(5.1875f, 6.0625f, 6.125f));
  EXPECT_THAT(training.state(0), testing::ElementsAre(-0.5f, 1.5f, 0.0f));
}

TEST(Lion, HasTheSameBitsInAnyCutting) {
  ExpectTheSameBitsInAnyCutting(Lion({{"weight_decay", 0.1}}));
}

TEST(Lion, RefusesWithRangeAndNearestName) {
  EXPECT_EQ(RefusalOf(Lion({{"weight_decay", -1}})),
            "optimizer 'lion': weight_decay is -1, but must be in [0, 1e+06]");
  EXPECT_EQ(RefusalOf(Lion({{"beta3", 0.9}})),
            "optimizer 'lion' has no option 'beta3'; did you mean 'beta1'?");
}

}  // namespace
}  // namespace syncline
