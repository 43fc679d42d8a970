#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/optimizer/optimizer.h"

namespace syncline {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Refusal(const OptimizerSettings& settings) {
  const absl::Status status = ValidateSettings(settings);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(MakeOptimizer(settings).ok());
  return std::string(status.message());
}

TEST(OptimizerSettings, DefaultsOfEveryOptimizerAreValid) {
  EXPECT_THAT(OptimizerNames(), ElementsAre("sgd", "adamw"));
  for (const std::string_view name : OptimizerNames()) {
    const auto optimizer = MakeOptimizer({.name = std::string(name)});
    ASSERT_TRUE(optimizer.ok()) << name;
    EXPECT_EQ((*optimizer)->name(), name);
    EXPECT_LE((*optimizer)->StateSlots(), kMaxStateSlots);
  }
}

TEST(OptimizerSettings, StateIsAsSmallAsTheOptionsAllow) {
  EXPECT_EQ((*MakeOptimizer({.name = "sgd"}))->StateSlots(), 0);
  EXPECT_EQ((*MakeOptimizer({.name = "sgd", .momentum = 0.9}))->StateSlots(), 1);
  EXPECT_EQ((*MakeOptimizer({.name = "adamw"}))->StateSlots(), 2);
}

TEST(OptimizerSettings, AnUnknownNameIsAnsweredWithTheNearest) {
  EXPECT_THAT(Refusal({.name = "adam"}),
              AllOf(HasSubstr("'adam'"), HasSubstr("'adamw'")));
}

TEST(OptimizerSettings, RefusalsNameOptionValueAndRange) {
  EXPECT_EQ(Refusal({.learning_rate = -0.1}),
            "learning_rate is -0.1, but must be in [0, 1e+06]");
  EXPECT_EQ(Refusal({.momentum = 1.0}), "momentum is 1, but must be in [0, 1)");
  EXPECT_EQ(Refusal({.beta2 = 1.5}), "beta2 is 1.5, but must be in [0, 1)");
  EXPECT_EQ(Refusal({.epsilon = 0}), "epsilon is 0, but must be in [1e-30, 1]");
  EXPECT_THAT(Refusal({.weight_decay = std::numeric_limits<double>::quiet_NaN()}),
              HasSubstr("weight_decay is nan"));
  EXPECT_THAT(Refusal({.learning_rate = std::numeric_limits<double>::infinity()}),
              HasSubstr("learning_rate is inf"));
}

TEST(OptimizerSettings, NesterovNeedsMomentumWithoutDampening) {
  EXPECT_THAT(Refusal({.nesterov = Nesterov::kOn}), HasSubstr("momentum is 0"));
  EXPECT_THAT(Refusal({.momentum = 0.9, .dampening = 0.1, .nesterov = Nesterov::kOn}),
              HasSubstr("dampening 0.1"));
  EXPECT_TRUE(ValidateSettings({.momentum = 0.9, .nesterov = Nesterov::kOn}).ok());
}

TEST(OptimizerSettings, AGroupScalesTheLearningRateAndMayReplaceTheWeightDecay) {
  const OptimizerSettings settings = {.learning_rate = 0.1, .weight_decay = 0.01};
  const StepScalars inherited = ScalarsFor(settings, {}, 7);
  EXPECT_EQ(inherited.step, 7u);
  EXPECT_EQ(inherited.learning_rate, 0.1);
  EXPECT_EQ(inherited.weight_decay, 0.01);
  EXPECT_EQ(inherited.gradient_scale, 1.0f);
  const StepScalars own =
      ScalarsFor(settings, {.learning_rate_scale = 2, .weight_decay = 0}, 7);
  EXPECT_EQ(own.learning_rate, 0.2);
  EXPECT_EQ(own.weight_decay, 0);
  EXPECT_FALSE(ValidateGroup({.learning_rate_scale = -1}).ok());
  EXPECT_FALSE(ValidateGroup({.weight_decay = -1}).ok());
  EXPECT_TRUE(ValidateGroup({}).ok());
}

}  // namespace
}  // namespace syncline
