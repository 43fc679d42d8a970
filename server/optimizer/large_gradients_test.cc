// Finite gradients whose squares are more than a float can hold.
#include <cmath>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "server/optimizer/element_reference_test_util.h"

namespace syncline {
namespace {

constexpr float kLarge = 1e20f;

class LargeGradients : public ::testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(AllOptimizers, LargeGradients,
                         ::testing::Values("adam", "adamw", "nadam", "radam", "rmsprop",
                                           "adadelta", "adamax", "rprop", "lamb",
                                           "adafactor", "onebit_adam"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(LargeGradients, MakeNoWeightThatIsNotANumber) {
  Training run({.name = GetParam()}, {1.0f, -0.5f, 0.25f, 3.0f});
  for (int t = 0; t < 20; ++t) {
    run.Step(t % 4 == 0 ? std::vector<float>{kLarge, -3e38f, 1, 0.5f}
                        : std::vector<float>{0.1f, 0.2f, -1, 0.5f});
    for (const float weight : run.weights()) ASSERT_TRUE(std::isfinite(weight)) << t;
  }
}

// The square times 1 - beta2 is finite. torch computes it in this order, too.
TEST(LargeGradientsOfAdam, MoveByTheLearningRate) {
  for (const char* name : {"adam", "nadam", "rmsprop"}) {
    OptimizerSettings settings = {.name = name, .options = {{"lr", 0.01}}};
    Training large(settings, {1.0f});
    large.Step(std::vector<float>{kLarge});
    Training small(settings, {1.0f});
    small.Step(std::vector<float>{1e3f});
    EXPECT_NEAR(large.weights()[0], small.weights()[0], 1e-6) << name;
    EXPECT_LT(large.weights()[0], 1) << name;
  }
}

}  // namespace
}  // namespace syncline
