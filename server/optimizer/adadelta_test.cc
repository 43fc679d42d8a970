#include "server/optimizer/adadelta.h"

#include "server/optimizer/element_reference_test_util.h"

namespace syncline {
namespace {

struct AdadeltaReference {
  explicit AdadeltaReference(const OptimizerSettings& settings)
      : decay(settings), rho(Option(settings, "rho")), epsilon(Option(settings, "eps")) {}

  template <typename Real>
  void Step(int /*t*/, Real gradient, Element<Real>& e) const {
    const Real g = decay.Apply(gradient, e);
    e.v = Real(rho) * e.v + Real(1 - rho) * g * g;
    const Real step =
        std::sqrt(e.extra + Real(epsilon)) / std::sqrt(e.v + Real(epsilon)) * g;
    e.extra = Real(rho) * e.extra + Real(1 - rho) * step * step;
    e.p -= Real(decay.lr) * step;
  }

  DecayReference decay;
  double rho;
  double epsilon;
};

OptimizerSettings Adadelta(OptionValues options) {
  return {.name = "adadelta", .options = std::move(options)};
}

TEST(Adadelta, GivesTheWeightsOfTorch) {
  const GoldenCase cases[] = {
      {Adadelta({}), {0.975794971f, -0.483569205f, 0.241098374f, 2.9990406f}},
      {Adadelta({{"lr", 0.5}, {"rho", 0.8}, {"eps", 1e-4}, {"weight_decay", 0.1}}),
       {0.721588552f, -0.346642733f, 0.185565442f, 2.8461175f},
       12},
  };
  for (const GoldenCase& golden : cases) ExpectGolden(golden);
}

TEST(Adadelta, After1000StepsIsAsNearToFloat64AsAPlainLoop) {
  for (const OptionValues& options :
       {OptionValues{{"weight_decay", 0.01}},
        OptionValues{{"weight_decay", 0.01}, {"decoupled", 1}, {"lr", 0.1}},
        OptionValues{{"rho", 0.5}, {"eps", 1e-3}}}) {
    ExpectAsExactAsAPlainLoop<AdadeltaReference>(Adadelta(options));
  }
}

TEST(Adadelta, HasTheSameBitsInAnyCutting) {
  ExpectTheSameBitsInAnyCutting(Adadelta({{"weight_decay", 0.1}}));
  ExpectTheSameBitsInAnyCutting(Adadelta({{"weight_decay", 0.1}, {"decoupled", 1}}));
}

TEST(Adadelta, RefusesWithRangeAndNearestName) {
  EXPECT_EQ(RefusalOf(Adadelta({{"rho", 1}})),
            "optimizer 'adadelta': rho is 1, but must be in [0, 1)");
  EXPECT_EQ(RefusalOf(Adadelta({{"roh", 0.9}})),
            "optimizer 'adadelta' has no option 'roh'; did you mean 'rho'?");
}

}  // namespace
}  // namespace syncline
