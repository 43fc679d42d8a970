#include "server/optimizer/onebit_adam.h"

#include <cmath>
#include <string>
#include <vector>

#include "server/optimizer/element_reference_test_util.h"
#include "server/optimizer/zero_one_adam.h"

namespace syncline {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Adam of one element in DeepSpeed's order of operations.
template <typename Real>
struct Adam {
  double lr = 1e-3;
  Real p = 0;
  Real m = 0;
  Real v = 0;

  void Mean(Real g) { m = Real(0.9) * m + Real(1 - 0.9) * g; }
  void Variance(Real g) { v = Real(0.999) * v + Real(1 - 0.999) * g * g; }
  void Step(double local_steps) {
    p -= Real(lr * local_steps) * (m / (std::sqrt(v) + Real(1e-8)) + Real(0.1) * p);
  }
};

OptimizerSettings Settings(const std::string& name, const OptionValues& options) {
  return {.name = name, .options = Merge({{"weight_decay", 0.1}}, options)};
}

// Trains on random contributions; `step(t, gradient, element)` is the reference.
template <typename Step>
void ExpectExact(const OptimizerSettings& settings, const Step& step) {
  constexpr size_t kElements = 509;
  std::mt19937 random(21);
  std::normal_distribution<float> normal;
  std::vector<float> weights(kElements);
  for (float& weight : weights) weight = normal(random);
  std::vector<Adam<double>> exact(kElements);
  std::vector<Adam<float>> plain(kElements);
  for (size_t i = 0; i < kElements; ++i) exact[i].p = plain[i].p = weights[i];
  Training run(settings, weights);
  const ContributionPlan plan = (*MakeOptimizer(settings))->contributions();
  for (uint64_t t = 1; t <= 1000; ++t) {
    run.scalars.contribution = plan.KindAt(t - 1);
    const std::vector<float> gradient = MixedGradient(random, kElements);
    run.Step(gradient);
    for (size_t i = 0; i < kElements; ++i) {
      step(t, gradient[i], exact[i]);
      step(t, gradient[i], plain[i]);
    }
  }
  std::vector<double> want;
  std::vector<float> fp32;
  for (const auto& element : exact) want.push_back(element.p);
  for (const auto& element : plain) fp32.push_back(element.p);
  EXPECT_LE(Distance(run.weights(), want),
            std::max(2 * Distance(fp32, want), 1e-7 * RootMeanSquare(want)));
}

TEST(OnebitAdam, FreezesTheVarianceAndTakesTheMeanOfMomenta) {
  ExpectExact(Settings("onebit_adam", {{"freeze_step", 600}}),
              [](uint64_t t, auto g, auto& e) {
                if (t <= 600) {
                  e.Mean(g);
                  e.Variance(g);
                } else {
                  e.m = g;
                }
                e.Step(1);
              });
}

TEST(OnebitAdam, AsksForMomentaFromTheFreezeStepOn) {
  const auto plan =
      (*MakeOptimizer({.name = "onebit_adam", .options = {{"freeze_step", 3}}}))
          ->contributions();
  EXPECT_EQ(plan.KindAt(2), ContributionKind::kGradient);
  EXPECT_EQ(plan.KindAt(3), ContributionKind::kMomentum);
  EXPECT_THAT(RefusalOf({.name = "onebit_adam", .options = {{"freeze_step", 0}}}),
              HasSubstr("freeze_step"));
}

TEST(OnebitAdam, ScalesMomentaAsItScalesGradients) {
  Training run(Settings("onebit_adam", {}), {1.0f});
  run.scalars.contribution = ContributionKind::kMomentum;
  run.scalars.gradient_scale = 0.25f;
  run.Step(std::vector<float>{2.0f});
  EXPECT_EQ(run.state(0), std::vector<float>{0.5f});
  EXPECT_EQ(run.state(1), std::vector<float>{0.0f});
}

TEST(OnebitAdam, GivesTheSameBitsInAnyCutting) {
  ExpectTheSameBitsInAnyCutting(Settings("onebit_adam", {}));
  ExpectTheSameBitsInAnyCutting(Settings("zero_one_adam", {{"var_update_scaler", 2}}));
}

// ---- 0/1 Adam ----

TEST(ZeroOneAdam, FollowsItsSchedule) {
  const ZeroOneSchedule schedule = {.var_freeze_step = 600,
                                    .var_update_scaler = 5,
                                    .local_step_scaler = 64,
                                    .local_step_clipper = 4};
  ExpectExact(Settings("zero_one_adam", {{"var_freeze_step", 600},
                                         {"var_update_scaler", 5},
                                         {"local_step_scaler", 64},
                                         {"local_step_clipper", 4}}),
              [&](uint64_t t, auto g, auto& e) {
                if (t <= 600) {
                  e.Mean(g);
                  if (UpdatesVariance(schedule, t)) e.Variance(g);
                } else {
                  e.m = g;
                }
                e.Step(static_cast<double>(LocalSteps(schedule, t)));
              });
}

TEST(ZeroOneAdam, UpdatesTheVarianceWhenDeepSpeedsCountersDo) {
  for (const uint64_t scaler : {1u, 2u, 3u, 5u, 16u, 100u}) {
    const ZeroOneSchedule schedule = {.var_freeze_step = 50000,
                                      .var_update_scaler = scaler};
    uint64_t interval = 1;
    uint64_t counter = 0;
    for (uint64_t t = 1; t <= 50000; ++t) {
      const bool updates = t % interval == 0;
      ASSERT_EQ(UpdatesVariance(schedule, t), updates) << t << " scaler " << scaler;
      if (updates && ++counter == scaler) {
        counter = 0;
        interval *= 2;
      }
    }
    EXPECT_FALSE(UpdatesVariance(schedule, 65536)) << "frozen";
  }
}

TEST(ZeroOneAdam, TakesMoreLocalStepsAfterEachScalerOfThem) {
  for (const uint64_t scaler : {1u, 7u, 64u, 1000u}) {
    for (const uint64_t clipper : {1u, 4u, 12u, 16u}) {
      const ZeroOneSchedule schedule = {.var_freeze_step = 10,
                                        .local_step_scaler = scaler,
                                        .local_step_clipper = clipper};
      uint64_t steps = 1;
      uint64_t taken = 0;
      for (uint64_t t = 1; t <= 5000; ++t) {
        ASSERT_EQ(LocalSteps(schedule, t), steps) << t << " of " << scaler;
        if (t <= 10) continue;
        taken += steps;
        if (taken < scaler) continue;
        taken = 0;
        steps = std::min(clipper, 2 * steps);
      }
    }
  }
}

TEST(ZeroOneAdam, IsQuickForTheLastUpdateOfAll) {
  EXPECT_FALSE(UpdatesVariance({.var_freeze_step = uint64_t{1} << 40}, 999999999999u));
  EXPECT_EQ(LocalSteps({}, 999999999999u), 16u);
}

TEST(ZeroOneAdam, RefusesWhatIsNoWholeNumberOfSteps) {
  for (const char* option : {"var_freeze_step", "var_update_scaler", "local_step_scaler",
                             "local_step_clipper"}) {
    for (const double value : {0.0, 1.5}) {
      EXPECT_THAT(RefusalOf({.name = "zero_one_adam", .options = {{option, value}}}),
                  HasSubstr(option));
    }
  }
}

TEST(ZeroOneAdam, HasDeepSpeedsDefaults) {
  std::vector<double> defaults;
  for (const OptionSpec& option : ZeroOneAdamOptions()) {
    defaults.push_back(option.standard);
  }
  EXPECT_THAT(defaults, ElementsAre(1e-3, 0, 0.9, 0.999, 1e-8, 100000, 16, 32678, 16));
}

}  // namespace
}  // namespace syncline
