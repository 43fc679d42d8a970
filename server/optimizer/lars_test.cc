#include "server/optimizer/lars.h"

#include <cmath>
#include <string>
#include <vector>

#include "server/optimizer/tensor_reference_test_util.h"

namespace syncline {
namespace {

using testing::FloatNear;
using testing::HasSubstr;
using testing::Pointwise;

// The formulas of lars.h in float64, for lr 5, weight decay 0.1 and momentum 0.9.
struct LarsReference {
  bool nesterov = false;

  void Step(double /*t*/, const std::vector<double>& gradient) {
    buffer.resize(weights.size());
    const bool adapts = shape.size() > 1;
    const double norm = NormOf(weights);
    const double decay = adapts ? 0.1 : 0;
    const double ratio =
        adapts ? 1e-3 * norm / (NormOf(gradient) + 0.1 * norm + 1e-8) : 1;
    for (size_t i = 0; i < weights.size(); ++i) {
      const double d = ratio * (gradient[i] + decay * weights[i]);
      buffer[i] = 0.9 * buffer[i] + d;
      weights[i] -= rate * (nesterov ? d + 0.9 * buffer[i] : buffer[i]);
    }
  }

  double rate = 5;
  std::vector<double> weights = {};
  Shape shape = {};
  std::vector<double> buffer = {};
};

const OptimizerSettings kLars = {
    .name = "lars", .options = {{"lr", 5}, {"weight_decay", 0.1}, {"momentum", 0.9}}};

TEST(Lars, IsExactOverAThousandSteps) {
  for (const Shape& shape : {Shape{31, 47}, Shape{3, 20, 17}, Shape{1, 1}}) {
    EXPECT_LT(ErrorAfter(1000, kLars, shape, LarsReference{}), 1e-6)
        << testing::PrintToString(shape);
  }
  OptimizerSettings nesterov = kLars;
  nesterov.options["nesterov"] = 1;
  EXPECT_LT(ErrorAfter(1000, nesterov, {31, 47}, LarsReference{.nesterov = true}), 1e-6);
}

TEST(Lars, TakesPlainStepsWithoutDecayInOneDimension) {
  OptimizerSettings slow = kLars;
  slow.options["lr"] = 1e-3;
  EXPECT_LT(ErrorAfter(1000, slow, {1025}, LarsReference{.rate = 1e-3}), 1e-6);
}

TEST(Lars, IsExactOnTensorsOfSeveralTiles) {
  for (const Shape& shape : {Shape{300, 700}, Shape{3, 70000}}) {
    EXPECT_LT(ErrorAfter(10, kLars, shape, LarsReference{}), 1e-6)
        << testing::PrintToString(shape);
  }
}

TEST(Lars, HasTheSameBitsInAnyStrips) { ExpectSameBitsInAnyStrips(kLars, {300, 700}); }

// The weights are those of timm.optim.Lars (timm 1.0.15) in float64. The second case has
// always_adapt.
TEST(Lars, GivesTheWeightsOfTimm) {
  struct Case {
    OptionValues options;
    std::vector<float> want;
  };
  const Case cases[] = {{{{"weight_decay", 0.1}, {"nesterov", 1}},
                         {-1.51908773f, -0.783596122f, 0.0302822341f, 0.73558491f,
                          1.51745459f, -0.930546842f, -0.195055233f, 0.355727768f,
                          1.3241258f, -1.23121226f, -0.342005954f, 0.208777048f}},
                        {{{"weight_decay", 0}},
                         {-1.58688826f, -0.819344866f, 0.0493644484f, 0.774874803f,
                          1.60001427f, -0.985405681f, -0.217862288f, 0.379913845f,
                          1.37635738f, -1.27586649f, -0.383923102f, 0.21385303f}}};
  for (Case c : cases) {
    c.options["lr"] = 20;
    c.options["momentum"] = 0.9;
    EXPECT_THAT(GoldenRun({.name = "lars", .options = c.options}, {3, 4}, 5),
                Pointwise(FloatNear(1e-6f), c.want))
        << testing::PrintToString(c.options);
  }
}

TEST(Lars, AdaptsOneDimensionOnRequest) {
  // ||p|| is 5 and ||g|| is 2.5, so r is 1e-3 * 5 / 2.5.
  const OptimizerSettings adapted = {.name = "lars", .options = {{"exclude_1d", 0}}};
  Training training(adapted, {3, 4});
  training.Step(std::vector<float>{0, 2.5f});
  EXPECT_THAT(training.weights(),
              Pointwise(FloatNear(1e-6f), std::vector<float>{3, 4 - 2e-3f * 2.5f}));
}

TEST(Lars, RefusesNesterovWithoutMomentum) {
  const auto status = ValidateOptimizer({.name = "lars", .options = {{"nesterov", 1}}});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("momentum"));
}

}  // namespace
}  // namespace syncline
