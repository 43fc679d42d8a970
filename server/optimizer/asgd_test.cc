#include "server/optimizer/asgd.h"

#include "server/optimizer/element_reference_test_util.h"

namespace syncline {
namespace {

struct AsgdReference {
  explicit AsgdReference(const OptimizerSettings& settings)
      : lr(Option(settings, "lr")),
        weight_decay(Option(settings, "weight_decay")),
        lambd(Option(settings, "lambd")),
        alpha(Option(settings, "alpha")) {}

  template <typename Real>
  void Step(int t, Real gradient, Element<Real>& e) const {
    const double eta = lr / std::pow(1 + lambd * lr * (t - 1), alpha);
    const Real g = gradient + Real(weight_decay) * e.p;
    e.p *= Real(1 - lambd * eta);
    e.p -= Real(eta) * g;
  }

  double lr;
  double weight_decay;
  double lambd;
  double alpha;
};

OptimizerSettings Asgd(OptionValues options) {
  return {.name = "asgd", .options = std::move(options)};
}

TEST(Asgd, GivesTheWeightsOfTorch) {
  const GoldenCase cases[] = {
      {Asgd({}), {0.984994948f, -0.489997447f, 0.243148729f, 2.99997449f}},
      {Asgd({{"lr", 0.1}, {"lambd", 0.01}, {"alpha", 0.5}, {"weight_decay", 0.1}}),
       {0.129270986f, -0.212591663f, 0.133964762f, 2.62806559f},
       12},
  };
  for (const GoldenCase& golden : cases) ExpectGolden(golden);
}

TEST(Asgd, After1000StepsIsAsNearToFloat64AsAPlainLoop) {
  for (const OptionValues& options :
       {OptionValues{{"weight_decay", 0.01}},
        OptionValues{{"lambd", 0.01}, {"lr", 0.1}, {"alpha", 0.5}}}) {
    ExpectAsExactAsAPlainLoop<AsgdReference>(Asgd(options));
  }
}

// The averages are those of torch 2.13 with t0 = 2.
TEST(Asgd, AveragesTheWeightsFromT0On) {
  Training training(Asgd({{"lr", 0.1}, {"lambd", 0.01}, {"t0", 2}}),
                    {1.0f, -0.5f, 0.25f, 3.0f});
  for (int t = 1; t <= 8; ++t) {
    training.Step(std::vector<float>{0.1f * static_cast<float>(t), -0.2f,
                                     0.3f / static_cast<float>(t),
                                     t % 2 == 1 ? 1e-3f : -1e-3f});
    if (t == 4) {
      EXPECT_EQ(training.state(0), training.weights()) << "the first one";
    }
  }
  const std::vector<float> want = {0.7750476f, -0.377571136f, 0.176087514f, 2.9820435f};
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_NEAR(training.state(0)[i], want[i], 1e-6) << i;
  }
}

TEST(Asgd, HasTheSameBitsInAnyCutting) {
  ExpectTheSameBitsInAnyCutting(Asgd({{"weight_decay", 0.1}}));
  ExpectTheSameBitsInAnyCutting(Asgd({{"t0", 3}}));
}

TEST(Asgd, RefusesWithRangeAndNearestName) {
  EXPECT_EQ(RefusalOf(Asgd({{"alpha", -1}})),
            "optimizer 'asgd': alpha is -1, but must be in [0, 1e+06]");
  EXPECT_EQ(RefusalOf(Asgd({{"lambda", 0}})),
            "optimizer 'asgd' has no option 'lambda'; did you mean 'lambd'?");
}

}  // namespace
}  // namespace syncline
