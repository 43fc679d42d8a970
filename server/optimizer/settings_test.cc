#include <limits>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/optimizer/optimizer.h"

namespace syncline {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::string Refusal(const OptimizerSettings& settings) {
  const absl::Status status = ValidateOptimizer(settings);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(MakeOptimizer(settings).ok());
  return std::string(status.message());
}

size_t SlotsOf(const OptimizerSettings& settings) {
  return (*MakeOptimizer(settings))->slots().size();
}

TEST(OptimizerSettings, DefaultsOfEveryOptimizerAreValid) {
  EXPECT_THAT(OptimizerNames(), IsSupersetOf({"sgd", "adam", "adamw", "nadam", "radam",
                                              "adagrad", "rmsprop", "lion"}));
  for (const std::string_view name : OptimizerNames()) {
    const auto optimizer = MakeOptimizer({.name = std::string(name)});
    ASSERT_TRUE(optimizer.ok()) << name;
    EXPECT_EQ((*optimizer)->name(), name);
  }
}

TEST(OptimizerSettings, EveryOptionHasAMeaningAndADefaultInItsRange) {
  for (const std::string_view name : OptimizerNames()) {
    std::set<std::string_view> seen;
    for (const OptionSpec& spec : OptionsOf(name)) {
      EXPECT_TRUE(seen.insert(spec.name).second) << name << " " << spec.name;
      EXPECT_FALSE(spec.meaning.empty()) << name << " " << spec.name;
      EXPECT_EQ(ValidateOptimizer({.name = std::string(name),
                                   .options = {{std::string(spec.name), spec.standard}}}),
                absl::OkStatus());
    }
    EXPECT_TRUE(seen.contains("lr")) << name;
  }
}

TEST(OptimizerSettings, EveryOptionOfEveryOptimizerRefusesValuesOutsideItsRange) {
  for (const std::string_view name : OptimizerNames()) {
    for (const OptionSpec& spec : OptionsOf(name)) {
      for (const double bad : {kNaN, kInfinity, spec.least - 1}) {
        const std::string refusal = Refusal(
            {.name = std::string(name), .options = {{std::string(spec.name), bad}}});
        EXPECT_THAT(refusal, AllOf(HasSubstr("'" + std::string(name) + "'"),
                                   HasSubstr(std::string(spec.name) + " is "),
                                   HasSubstr("must be ")));
      }
    }
  }
}

TEST(OptimizerSettings, StateIsAsSmallAsTheOptionsAllow) {
  EXPECT_EQ(SlotsOf({.name = "sgd"}), 0u);
  EXPECT_EQ(SlotsOf({.name = "sgd", .options = {{"momentum", 0.9}}}), 1u);
  EXPECT_EQ(SlotsOf({.name = "adamw"}), 2u);
  EXPECT_EQ(SlotsOf({.name = "adamw", .options = {{"amsgrad", 1}}}), 3u);
}

TEST(OptimizerSettings, AnUnknownNameIsAnsweredWithTheNearest) {
  EXPECT_THAT(Refusal({.name = "adamww"}),
              AllOf(HasSubstr("'adamww'"), HasSubstr("'adamw'")));
  EXPECT_THAT(Refusal({.name = "adamw", .options = {{"beta3", 0.9}}}),
              AllOf(HasSubstr("'beta3'"), HasSubstr("'beta1'")));
}

TEST(OptimizerSettings, RefusalsNameOptionValueAndRange) {
  EXPECT_EQ(Refusal({.options = {{"lr", -0.1}}}),
            "optimizer 'sgd': lr is -0.1, but must be in [0, 1e+06]");
  EXPECT_EQ(Refusal({.options = {{"momentum", 1}}}),
            "optimizer 'sgd': momentum is 1, but must be in [0, 1)");
  EXPECT_EQ(Refusal({.name = "adam", .options = {{"beta2", 1.5}}}),
            "optimizer 'adam': beta2 is 1.5, but must be in [0, 1)");
  EXPECT_EQ(Refusal({.name = "adam", .options = {{"eps", 0}}}),
            "optimizer 'adam': eps is 0, but must be in [1e-30, 1]");
  EXPECT_THAT(Refusal({.options = {{"weight_decay", kNaN}}}),
              HasSubstr("weight_decay is nan"));
  EXPECT_THAT(Refusal({.options = {{"lr", kInfinity}}}), HasSubstr("lr is inf"));
}

TEST(OptimizerSettings, AnUnknownStateTypeIsAnsweredWithTheNearest) {
  EXPECT_THAT(Refusal({.state = "bf61"}),
              AllOf(HasSubstr("'bf61'"), HasSubstr("'bf16'")));
  EXPECT_EQ(*ParseStateType("f32"), StateType::kF32);
  EXPECT_EQ(*ParseStateType("bf16"), StateType::kBf16);
  EXPECT_EQ(*ParseStateType("int8"), StateType::kInt8);
}

TEST(OptimizerSettings, AGroupReplacesOptionsAndIsRefusedLikeTheJob) {
  const OptimizerSettings settings = {.options = {{"lr", 0.1}, {"weight_decay", 0.01}}};
  EXPECT_EQ(ValidateGroup(settings, {}), absl::OkStatus());
  EXPECT_EQ(ValidateGroup(settings, {.learning_rate_scale = 2, .frozen = true}),
            absl::OkStatus());
  EXPECT_FALSE(ValidateGroup(settings, {.learning_rate_scale = -1}).ok());
  EXPECT_FALSE(ValidateGroup(settings, {.options = {{"weight_decay", -1}}}).ok());
  EXPECT_FALSE(ValidateGroup(settings, {.options = {{"beta1", 0.9}}}).ok());
  EXPECT_FALSE(ValidateGroup(settings, {.state = "f16"}).ok());
  EXPECT_FALSE(MakeOptimizer(settings, {.options = {{"nesterov", 1}}}).ok());
}

TEST(OptimizerSettings, ATensorThatTakesTheMeanHasNothingElse) {
  const OptimizerSettings adamw = {.name = "adamw", .options = {{"ema_decay", 0.9}}};
  const GroupOptions mean = {.options = {{"mean", 1}}};
  EXPECT_EQ(ValidateGroup(adamw, mean), absl::OkStatus());
  EXPECT_TRUE((*MakeOptimizer(adamw, mean))->slots().empty());
  for (const GroupOptions& other :
       {GroupOptions{.learning_rate_scale = 2, .options = mean.options},
        GroupOptions{.options = mean.options, .frozen = true},
        GroupOptions{.options = mean.options, .state = "bf16"},
        GroupOptions{.options = {{"mean", 1}, {"weight_decay", 0}}},
        GroupOptions{.options = {{"mean", 0}}}}) {
    EXPECT_THAT(std::string(ValidateGroup(adamw, other).message()),
                HasSubstr("say mean=1 and nothing else"));
  }
  for (const char* name : {"lbfgs", "sophia", "onebit_adam", "zero_one_adam"}) {
    EXPECT_THAT(std::string(ValidateGroup({.name = name}, mean).message()),
                HasSubstr("leaves no room"))
        << name;
  }
  EXPECT_FALSE(ValidateOptimizer({.options = {{"mean", 1}}}).ok()) << "of a whole job";
}

// With a zero gradient, a weight of 1 shows the decay alone.
TEST(OptimizerSettings, AGroupsOptionsTakeTheJobsPlace) {
  const OptimizerSettings settings = {.options = {{"weight_decay", 0.5}}};
  const auto weight_after = [&](const GroupOptions& group) {
    const auto optimizer = *MakeOptimizer(settings, group);
    const std::vector<float> gradient = {0};
    std::vector<float> weight = {1};
    const TensorShape shape({{1}});
    optimizer->Apply({.learning_rate = 0.5}, {.gradient = gradient, .master = weight},
                     {.shape = shape});
    return weight[0];
  };
  EXPECT_EQ(weight_after({}), 0.75f);
  EXPECT_EQ(weight_after({.options = {{"weight_decay", 0}}}), 1.0f);
}

}  // namespace
}  // namespace syncline
