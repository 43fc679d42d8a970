#include "server/optimizer/rprop.h"

#include "server/optimizer/element_reference_test_util.h"

namespace syncline {
namespace {

// m is the last gradient, v the step size.
struct RpropReference {
  explicit RpropReference(const OptimizerSettings& settings)
      : lr(Option(settings, "lr")),
        minus(Option(settings, "eta_minus")),
        plus(Option(settings, "eta_plus")),
        least(Option(settings, "step_size_min")),
        most(Option(settings, "step_size_max")) {}

  template <typename Real>
  void Step(int t, Real gradient, Element<Real>& e) const {
    if (t == 1) e.v = Real(lr);
    Real g = gradient;
    const bool turned = (g > 0 && e.m < 0) || (g < 0 && e.m > 0);
    const bool stayed = (g > 0 && e.m > 0) || (g < 0 && e.m < 0);
    if (stayed) e.v *= Real(plus);
    if (turned) e.v *= Real(minus);
    e.v = std::min(std::max(e.v, Real(least)), Real(most));
    if (turned) g = 0;
    if (g > 0) e.p -= e.v;
    if (g < 0) e.p += e.v;
    e.m = g;
  }

  double lr;
  double minus;
  double plus;
  double least;
  double most;
};

OptimizerSettings Rprop(OptionValues options) {
  return {.name = "rprop", .options = std::move(options)};
}

TEST(Rprop, GivesTheWeightsOfTorch) {
  const GoldenCase cases[] = {
      {Rprop({}), {0.925584018f, -0.425583988f, 0.175583988f, 2.98249984f}},
      {Rprop({{"lr", 0.02},
              {"eta_minus", 0.3},
              {"eta_plus", 2},
              {"step_size_min", 1e-3},
              {"step_size_max", 0.1}}),
       {-0.0400000364f, 0.539999962f, -0.790000021f, 2.96920013f},
       12},
  };
  for (const GoldenCase& golden : cases) ExpectGolden(golden);
}

TEST(Rprop, After1000StepsIsAsNearToFloat64AsAPlainLoop) {
  for (const OptionValues& options :
       {OptionValues{},
        OptionValues{{"lr", 0.1}, {"eta_minus", 0.7}, {"step_size_max", 0.2}}}) {
    ExpectAsExactAsAPlainLoop<RpropReference>(Rprop(options));
  }
}

TEST(Rprop, CountsGradientsWhoseProductAFloatCannotHold) {
  Training training(Rprop({{"lr", 0.5}, {"eta_plus", 2}}), {0});
  training.Step(std::vector<float>{1e-30f});
  training.Step(std::vector<float>{1e-30f});
  EXPECT_EQ(training.state(1)[0], 1.0f);
  EXPECT_EQ(training.weights()[0], -1.5f);
}

TEST(Rprop, HasTheSameBitsInAnyCutting) {
  ExpectTheSameBitsInAnyCutting(Rprop({{"step_size_max", 0.1}}));
}

TEST(Rprop, RefusesWithRangeAndNearestName) {
  EXPECT_EQ(RefusalOf(Rprop({{"eta_plus", 0.9}})),
            "optimizer 'rprop': eta_plus is 0.9, but must be in [1, 1e+06]");
  EXPECT_EQ(RefusalOf(Rprop({{"step_size_min", 2}, {"step_size_max", 1}})),
            "optimizer 'rprop': step_size_min is 2, but must not be above step_size_max, "
            "1");
  EXPECT_EQ(RefusalOf(Rprop({{"eta_mines", 0.5}})),
            "optimizer 'rprop' has no option 'eta_mines'; did you mean 'eta_minus'?");
}

}  // namespace
}  // namespace syncline
