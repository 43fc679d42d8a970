#include "server/optimizer/signsgd.h"

#include <limits>

#include "server/optimizer/element_reference_test_util.h"

namespace syncline {
namespace {

struct SignReference {
  explicit SignReference(const OptimizerSettings& settings)
      : lr(Option(settings, "lr")), weight_decay(Option(settings, "weight_decay")) {}

  template <typename Real>
  void Step(int /*t*/, Real g, Element<Real>& e) const {
    e.p *= Real(1 - lr * weight_decay);
    e.p -= Real(lr) * Real((g > 0) - (g < 0));
  }

  double lr;
  double weight_decay;
};

OptimizerSettings SignSgd(OptionValues options) {
  return {.name = "signsgd", .options = std::move(options)};
}

TEST(SignSgd, After1000StepsIsAsNearToFloat64AsAPlainLoop) {
  ExpectAsExactAsAPlainLoop<SignReference>(
      SignSgd({{"lr", 1e-3}, {"weight_decay", 0.1}}));
}

// Computed by hand. The decay uses the old weight.
TEST(SignSgd, GivesTheWeightsOfTheFormula) {
  Training training(SignSgd({{"lr", 0.5}, {"weight_decay", 0.25}}), {8, 8, 8});
  training.Step(std::vector<float>{2, -1e-30f, 0});
  EXPECT_THAT(training.weights(), testing::ElementsAre(6.5f, 7.5f, 7.0f));
}

// As torch.sign has it: 1, -1, 0 and 0.
TEST(SignSgd, TakesTheSignsOfInfinitiesZerosAndNaN) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  Training training(SignSgd({{"lr", 1}}), {0, 0, 0, 0});
  training.Step(std::vector<float>{kInfinity, -kInfinity, -0.0f,
                                   std::numeric_limits<float>::quiet_NaN()});
  EXPECT_THAT(training.weights(), testing::ElementsAre(-1, 1, 0, 0));
}

TEST(SignSgd, OnlyTheSignOfTheScaleMatters) {
  const std::vector<float> gradient = {1e-30f, -1e-30f};
  const auto weights_with = [&](float scale, double maximize) {
    Training training(SignSgd({{"lr", 1}, {"maximize", maximize}}), {0, 0});
    training.scalars.gradient_scale = scale;
    training.Step(gradient);
    return training.weights();
  };
  EXPECT_THAT(weights_with(1e-30f, 0), testing::ElementsAre(-1, 1)) << "not rounded away";
  EXPECT_THAT(weights_with(1e-30f, 1), testing::ElementsAre(1, -1));
  EXPECT_THAT(weights_with(0, 0), testing::ElementsAre(0, 0)) << "it does not count";
}

TEST(SignSgd, HasTheSameBitsInAnyCutting) {
  ExpectTheSameBitsInAnyCutting(SignSgd({{"weight_decay", 0.1}}));
}

TEST(SignSgd, RefusesWithRangeAndNearestName) {
  EXPECT_EQ(RefusalOf(SignSgd({{"weight_decay", -1}})),
            "optimizer 'signsgd': weight_decay is -1, but must be in [0, 1e+06]");
  EXPECT_THAT(RefusalOf(SignSgd({{"momentum", 0.9}})),
              testing::HasSubstr("'signsgd' has no option 'momentum'"));
}

}  // namespace
}  // namespace syncline
