#include "server/optimizer/training.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

TrainedTensor Tensor(std::vector<uint64_t> shape, const GroupOptions& group = {}) {
  return {.shape = TensorShape(shape), .group = group};
}

std::unique_ptr<const TrainingPlan> PlanOf(const TrainingSettings& settings,
                                           std::vector<TrainedTensor> tensors = {
                                               Tensor({8, 16})}) {
  auto plan = TrainingPlan::Create(settings, tensors);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *std::move(plan);
}

std::string Refusal(const absl::Status& status) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}
std::string Refusal(const TrainingSettings& settings) {
  return Refusal(ValidateTraining(settings));
}

TEST(TrainingPlan, AGroupCannotChangeWhatAllWorkersPush) {
  const std::vector<TrainedTensor> tensors = {
      Tensor({8}, {.options = {{"hessian_interval", 3}}})};
  const auto plan = TrainingPlan::Create({.optimizer = {.name = "sophia"}}, tensors);
  EXPECT_THAT(Refusal(plan.status()), HasSubstr("hessian_interval"));
}

// ---- What shards wait for ----

TEST(TrainingPlan, WaitsForDecisionsOnlyWhereSomethingAsksForThem) {
  const auto decides = [](const TrainingSettings& settings) {
    return PlanOf(settings)->NeedsDecision();
  };
  EXPECT_FALSE(decides({}));
  EXPECT_FALSE(decides({.optimizer = {.name = "lamb"}}));
  EXPECT_FALSE(decides({.gradient = {{"clip_value", 1}, {"clip_tensor_norm", 1}}}));
  EXPECT_FALSE(decides({.gradient = {{"clip_global_norm", 0}}}));
  EXPECT_FALSE(decides({.accumulate_steps = 4, .aggregation = Aggregation::kArrival}));
  EXPECT_TRUE(decides({.gradient = {{"clip_global_norm", 1}}}));
  EXPECT_TRUE(decides({.loss_scaling = {.name = "torch"}}));
  EXPECT_TRUE(decides({.nonfinite_steps = NonfiniteSteps::kSkip}));
  EXPECT_TRUE(decides({.optimizer = {.name = "lbfgs"}}));
}

TEST(TrainingPlan, KeepsTensorsWholeOnlyForThoseWhoNeedTheirFigures) {
  const auto whole = [](const TrainingSettings& settings) {
    return PlanOf(settings)->NeedsWholeTensor(0);
  };
  EXPECT_FALSE(whole({.optimizer = {.name = "adamw"}}));
  EXPECT_FALSE(whole({.gradient = {{"clip_global_norm", 1}, {"clip_value", 1}}}));
  EXPECT_TRUE(whole({.gradient = {{"clip_tensor_norm", 1}}}));
  EXPECT_TRUE(whole({.gradient = {{"agc", 0.01}}}));
  EXPECT_TRUE(whole({.gradient = {{"centralize", 1}}}));
  for (const char* name : {"lamb", "lars", "adafactor"}) {
    EXPECT_TRUE(whole({.optimizer = {.name = name}})) << name;
  }
}

TEST(TrainingPlan, KeepsASumForAccumulationAndForSumsOnArrival) {
  EXPECT_FALSE(TrainingSettings{}.NeedsAccumulator());
  EXPECT_TRUE(TrainingSettings{.accumulate_steps = 2}.NeedsAccumulator());
  EXPECT_TRUE(TrainingSettings{.aggregation = Aggregation::kArrival}.NeedsAccumulator());
}

// ---- Learning rates ----

TEST(TrainingPlan, LearningRateIsThatOfTheGroupTimesScheduleTimesBatch) {
  const TrainingSettings settings = {
      .optimizer = {.name = "sgd", .options = {{"lr", 0.5}}},
      .schedule = {"linear",
                   {{"total_steps", 10}, {"base_batch", 64}, {"batch_exponent", 0.5}}}};
  const auto plan = PlanOf(
      settings, {Tensor({4}), Tensor({4}, {.learning_rate_scale = 0.1}),
                 Tensor({4}, {.learning_rate_scale = 0.1, .options = {{"lr", 3.0}}})});
  // At step 4 of 10 the schedule is 0.6; 256 samples are 4 base batches.
  EXPECT_DOUBLE_EQ(plan->LearningRate(0, 4, 256), 0.5 * 0.6 * 2);
  EXPECT_DOUBLE_EQ(plan->LearningRate(1, 4, 256), 0.5 * 0.1 * 0.6 * 2);
  EXPECT_DOUBLE_EQ(plan->LearningRate(2, 4, 256), 3.0 * 0.1 * 0.6 * 2);
  EXPECT_DOUBLE_EQ(plan->JobLearningRate(4), 0.5 * 0.6);
}

TEST(TrainingPlan, DefaultsAreThoseOfTheOptimizer) {
  const auto plan = PlanOf({.optimizer = {.name = "adamw"}});
  EXPECT_DOUBLE_EQ(plan->LearningRate(0, 0, 1), 1e-3);
  EXPECT_EQ(plan->optimizer(0).name(), "adamw");
  EXPECT_EQ(plan->InitialLossScale(), 1);
}

TEST(TrainingPlan, ScheduleCountsUpdatesAndNotPushes) {
  const TrainingSettings settings = {.optimizer = {.name = "sgd", .options = {{"lr", 1}}},
                                     .schedule = {"exponential", {{"gamma", 0.5}}},
                                     .accumulate_steps = 3};
  const auto plan = PlanOf(settings);
  std::vector<double> rates;
  std::vector<bool> updates;
  for (uint64_t step = 0; step < 7; ++step) {
    rates.push_back(plan->LearningRate(0, step, 1));
    updates.push_back(settings.Updates(step));
  }
  EXPECT_THAT(rates, testing::ElementsAre(1, 1, 1, 0.5, 0.5, 0.5, 0.25));
  EXPECT_THAT(updates,
              testing::ElementsAre(false, false, true, false, false, true, false));
}

TEST(TrainingPlan, StartsWithTheLossScaleOfThePreset) {
  EXPECT_EQ(PlanOf({.loss_scaling = {"apex", {}}})->InitialLossScale(), 65536);
  EXPECT_EQ(
      PlanOf({.loss_scaling = {"torch", {{"init_scale", 1024}}}})->InitialLossScale(),
      1024);
}

// ---- Groups ----

TEST(TrainingPlan, TensorsHaveTheOptionsAndTheStateOfTheirGroup) {
  const TrainingSettings settings = {.optimizer = {.name = "sgd", .state = "int8"}};
  const auto plan = PlanOf(settings, {Tensor({4}), Tensor({4}, {.state = "bf16"}),
                                      Tensor({4}, {.options = {{"momentum", 0.9}}})});
  EXPECT_EQ(plan->state_type(0), StateType::kInt8);
  EXPECT_EQ(plan->state_type(1), StateType::kBf16);
  EXPECT_EQ(plan->optimizer(0).slots().size(), 0u);
  EXPECT_EQ(plan->optimizer(2).slots().size(), 1u);
}

TEST(TrainingPlan, NamesTheTensorWhoseGroupIsWrong) {
  const std::vector<TrainedTensor> tensors = {
      Tensor({4}), Tensor({4}, {.options = {{"momentun", 0.9}}})};
  EXPECT_THAT(Refusal(TrainingPlan::Create({}, tensors).status()),
              AllOf(HasSubstr("tensor 1: "), HasSubstr("'momentum'")));
}

TEST(TrainingPlan, LbfgsSeesRawGradientsAndExactState) {
  const std::vector<TrainedTensor> tensors = {Tensor({4})};
  const TrainingSettings settings = {.optimizer = {.name = "lbfgs"}};
  const auto refused = [&](const TrainingSettings& changed) {
    return Refusal(TrainingPlan::Create(changed, tensors).status());
  };
  EXPECT_TRUE(TrainingPlan::Create(settings, tensors).ok());
  TrainingSettings clipped = settings;
  clipped.gradient = {{"clip_global_norm", 1}};
  EXPECT_TRUE(TrainingPlan::Create(clipped, tensors).ok());
  clipped.gradient = {{"clip_value", 1}};
  EXPECT_THAT(refused(clipped), HasSubstr("'lbfgs'"));
  TrainingSettings small = settings;
  small.optimizer.state = "bf16";
  EXPECT_THAT(refused(small), HasSubstr("f32 state"));
}

// ---- Changes of a running job ----

TEST(Canonical, ForgetsOptionsThatAreTheDefaultsAnyway) {
  const TrainingSettings spelled_out = {
      .optimizer = {.name = "adamw", .options = {{"beta1", 0.9}, {"lr", 0.5}}},
      .schedule = {"constant", {{"warmup_steps", 0}}},
      .gradient = {{"clip_global_norm", 0}},
      .loss_scaling = {"torch", {{"init_scale", 65536}}}};
  const TrainingSettings brief = {
      .optimizer = {.name = "adamw", .options = {{"lr", 0.5}}},
      .loss_scaling = {"torch"}};
  EXPECT_FALSE(spelled_out == brief);
  EXPECT_EQ(Canonical(spelled_out), Canonical(brief));
}

TEST(CheckChange, AllowsNewNumbers) {
  const std::vector<TrainedTensor> tensors = {Tensor({4})};
  const TrainingSettings settings = {.optimizer = {.name = "adamw"}};
  TrainingSettings next = settings;
  next.optimizer.options = {{"lr", 1e-4}, {"beta1", 0.8}, {"weight_decay", 0}};
  next.schedule = {"cosine", {{"total_steps", 1000}}};
  EXPECT_EQ(CheckChange(settings, next, tensors), absl::OkStatus());
}

TEST(CheckChange, RefusesWhatNeedsAnotherPlacementOrDecisions) {
  const std::vector<TrainedTensor> tensors = {Tensor({4})};
  const TrainingSettings by_block = {
      .optimizer = {.name = "lamb", .options = {{"weight_decay", 0}}}};
  TrainingSettings whole = by_block;
  whole.optimizer.options["weight_decay"] = 0.01;
  EXPECT_THAT(Refusal(CheckChange(by_block, whole, tensors)), HasSubstr("placement"));
  TrainingSettings clipped;
  clipped.gradient = {{"clip_global_norm", 1}};
  EXPECT_THAT(Refusal(CheckChange({}, clipped, tensors)), HasSubstr("new job"));
  EXPECT_THAT(Refusal(CheckChange({}, {.accumulate_steps = 4}, tensors)),
              HasSubstr("new job"));
}

TEST(CheckChange, RefusesWhatChangesThePushesOfRunningWorkers) {
  const std::vector<TrainedTensor> tensors = {Tensor({4})};
  const auto refusal = [&](const std::string& name, const std::string& option) {
    return Refusal(CheckChange({.optimizer = {.name = name, .options = {{option, 10}}}},
                               {.optimizer = {.name = name, .options = {{option, 20}}}},
                               tensors));
  };
  EXPECT_THAT(refusal("sophia", "hessian_interval"), HasSubstr("hessian_interval"));
  EXPECT_THAT(refusal("onebit_adam", "freeze_step"), HasSubstr("freeze_step"));
  EXPECT_THAT(refusal("zero_one_adam", "var_freeze_step"), HasSubstr("var_freeze_step"));
  const TrainingSettings accumulated = {.optimizer = {.name = "sophia"},
                                        .accumulate_steps = 2};
  TrainingSettings next = accumulated;
  next.accumulate_steps = 4;
  EXPECT_THAT(Refusal(CheckChange(accumulated, next, tensors)),
              HasSubstr("accumulate_steps"));
}

TEST(CheckChange, RefusesWhatNeedsOtherState) {
  const std::vector<TrainedTensor> tensors = {Tensor({4})};
  const TrainingSettings settings = {.optimizer = {.name = "sgd"}};
  const auto refused = [&](const OptimizerSettings& optimizer) {
    return Refusal(CheckChange(settings, {.optimizer = optimizer}, tensors));
  };
  EXPECT_THAT(refused({.name = "sgd", .options = {{"momentum", 0.9}}}),
              HasSubstr("other optimizer state"));
  EXPECT_THAT(refused({.name = "adamw"}), HasSubstr("other optimizer state"));
  EXPECT_THAT(refused({.name = "sgd", .state = "int8"}),
              HasSubstr("other optimizer state"));
  EXPECT_THAT(
      Refusal(CheckChange({.optimizer = {.name = "adamw"}},
                          {.optimizer = {.name = "adamw", .options = {{"amsgrad", 1}}}},
                          tensors)),
      HasSubstr("other optimizer state"));
}

TEST(CheckChange, LooksAtTheOptionsOfEveryGroup) {
  // The job gets momentum, but the only tensor has momentum of its own.
  const std::vector<TrainedTensor> tensors = {
      Tensor({4}, {.options = {{"momentum", 0.5}}})};
  EXPECT_EQ(CheckChange({}, {.optimizer = {.options = {{"momentum", 0.9}}}}, tensors),
            absl::OkStatus());
}

TEST(CheckChange, RefusesWhatIsNotValid) {
  const std::vector<TrainedTensor> tensors = {Tensor({4})};
  EXPECT_THAT(
      Refusal(CheckChange({}, {.optimizer = {.options = {{"lr", kNaN}}}}, tensors)),
      HasSubstr("lr is nan"));
  EXPECT_THAT(Refusal(CheckChange({}, {.schedule = {"cosine", {}}}, tensors)),
              HasSubstr("total_steps is missing"));
}

// ---- Refusals ----

TEST(ValidateTraining, NamesWhatIsWrongInEachPart) {
  EXPECT_EQ(ValidateTraining({}), absl::OkStatus());
  EXPECT_THAT(Refusal({.optimizer = {.name = "adamv"}}), HasSubstr("'adam"));
  EXPECT_THAT(Refusal({.optimizer = {.state = "int4"}}), HasSubstr("'int8'"));
  EXPECT_THAT(Refusal({.schedule = {"", {}}}), HasSubstr("unknown schedule ''"));
  EXPECT_THAT(Refusal({.gradient = {{"clip_norm", 1}}}),
              AllOf(HasSubstr("gradient transforms"), HasSubstr("clip_norm")));
  EXPECT_THAT(Refusal({.gradient = {{"clip_global_norm", -1}}}),
              HasSubstr("clip_global_norm is -1"));
  EXPECT_THAT(Refusal({.gradient = {{"clip_global_norm", kNaN}}}),
              HasSubstr("clip_global_norm is nan"));
  EXPECT_THAT(Refusal({.loss_scaling = {"torhc", {}}}), HasSubstr("'torch'"));
  for (const uint32_t wrong : {0u, kMaxAccumulateSteps + 1}) {
    EXPECT_THAT(Refusal({.accumulate_steps = wrong}), HasSubstr("must be in [1, 65536]"));
  }
  EXPECT_EQ(ValidateTraining({.accumulate_steps = kMaxAccumulateSteps}),
            absl::OkStatus());
}

TEST(ValidateTraining, NamesWhatAModeDoesNotGoWith) {
  const auto refusal = [](const TrainingSettings& settings) {
    const TrainedTensor tensor = {.shape = TensorShape({}), .group = {}};
    return std::string(TrainingPlan::Create(settings, {&tensor, 1}).status().message());
  };
  const NamedOptions ssp = {"ssp", {{"staleness", 2}}};
  const NamedOptions asp = {"asp", {}};
  EXPECT_THAT(refusal({.mode = {"spp", {}}}), HasSubstr("did you mean 'ssp'"));
  EXPECT_THAT(refusal({.mode = {"ssp", {{"staleness", -1}}}}),
              HasSubstr("must be a whole number in [0, 64]"));
  EXPECT_THAT(refusal({.loss_scaling = {"torch", {}}, .mode = ssp}),
              HasSubstr("'ssp:staleness=2' takes gradients of several steps"));
  EXPECT_THAT(refusal({.aggregation = Aggregation::kArrival, .mode = ssp}),
              HasSubstr("aggregation=rank_order"));
  EXPECT_EQ(refusal({.loss_scaling = {"torch", {}}, .mode = {"ssp", {{"staleness", 0}}}}),
            "")
      << "that is bsp";
  EXPECT_EQ(refusal({.gradient = {{"clip_global_norm", 1}}, .mode = ssp}), "");
  EXPECT_THAT(refusal({.gradient = {{"clip_global_norm", 1}}, .mode = asp}),
              HasSubstr("no whole step"));
  EXPECT_THAT(refusal({.optimizer = {.name = "lbfgs"}, .mode = asp}),
              HasSubstr("no whole step"));
  EXPECT_THAT(refusal({.accumulate_steps = 2, .mode = asp}),
              HasSubstr("accumulate_on=worker"));
  EXPECT_THAT(refusal({.optimizer = {.name = "sophia"}, .mode = asp}),
              HasSubstr("takes gradients only"));
  EXPECT_THAT(refusal({.optimizer = {.name = "lamb"}, .mode = asp}),
              HasSubstr("looks at all of a tensor"));
}

TEST(ValidateTraining, ShowsWeightsAheadOfAMomentumOnly) {
  const std::vector<TrainedTensor> tensors = {Tensor({4})};
  const NamedOptions mode = {"asp", {{"view_ahead", 0.1}}};
  const auto create = [&](const char* name, const OptionValues& options) {
    return TrainingPlan::Create(
               {.optimizer = {.name = name, .options = options}, .mode = mode}, tensors)
        .status();
  };
  EXPECT_TRUE(create("sgd", {{"momentum", 0.9}}).ok());
  EXPECT_TRUE(create("rmsprop", {{"momentum", 0.9}}).ok());
  EXPECT_TRUE(
      create("sgd", {{"momentum", 0.9}, {"nesterov", 1}, {"momentum_every", 2}}).ok());
  for (const char* name : {"sgd", "rmsprop", "adamw", "lion"}) {
    EXPECT_THAT(Refusal(create(name, {})), HasSubstr("keeps no momentum")) << name;
  }
}

TEST(ValidateTraining, DelaysMomentumWhereEachContributionIsAStep) {
  const OptimizerSettings delayed = {
      .name = "sgd",
      .options = {{"momentum", 0.9}, {"nesterov", 1}, {"momentum_every", 4}}};
  const std::vector<TrainedTensor> tensors = {Tensor({4})};
  EXPECT_TRUE(
      TrainingPlan::Create({.optimizer = delayed, .mode = {"asp", {}}}, tensors).ok());
  for (const NamedOptions& mode :
       {NamedOptions{"bsp", {}}, NamedOptions{"bsp", {{"quorum", 2}}},
        NamedOptions{"ssp", {{"staleness", 2}}}}) {
    EXPECT_THAT(
        Refusal(
            TrainingPlan::Create({.optimizer = delayed, .mode = mode}, tensors).status()),
        HasSubstr("leave momentum_every at 1, or take mode asp"))
        << mode.name;
  }
  // Only a group asks for it.
  std::vector<TrainedTensor> groups = {Tensor({4})};
  groups[0].group.options = {{"momentum_every", 4}};
  const OptimizerSettings nesterov = {.name = "sgd",
                                      .options = {{"momentum", 0.9}, {"nesterov", 1}}};
  EXPECT_THAT(Refusal(TrainingPlan::Create({.optimizer = nesterov}, groups).status()),
              HasSubstr("momentum_every"));
}

TEST(SyncMode, OlderContributionsWeighLess) {
  const SyncMode inverse = *ParseSyncMode({"asp", {{"age_power", 1}}});
  EXPECT_EQ(inverse.WeightOfAge(0), 1.0);
  EXPECT_EQ(inverse.WeightOfAge(3), 0.25);
  const SyncMode exponential = *ParseSyncMode({"asp", {{"age_decay", 0.5}}});
  EXPECT_EQ(exponential.WeightOfAge(2), 0.25);
  EXPECT_EQ(ParseSyncMode({"asp", {}})->WeightOfAge(9), 1.0);
  const SyncMode gated = *ParseSyncMode({"asp", {{"age_limit", 6}}});
  EXPECT_EQ(gated.WeightOfAge(0), 1.0);
  EXPECT_NEAR(gated.WeightOfAge(2), 0.75, 1e-15) << "cos(60 degrees) is a half";
  EXPECT_NEAR(gated.WeightOfAge(3), 0.5, 1e-15);
  EXPECT_EQ(gated.WeightOfAge(6), 0.0);
  EXPECT_EQ(gated.WeightOfAge(7), 0.0) << "and not up again";
  const SyncMode both = *ParseSyncMode({"asp", {{"age_limit", 6}, {"age_decay", 0.5}}});
  EXPECT_NEAR(both.WeightOfAge(2), 0.75 * 0.25, 1e-15);
  EXPECT_FALSE(ParseSyncMode({"asp", {{"age_limit", -1}}}).ok());
  EXPECT_FALSE(ParseSyncMode({"ssp", {{"age_limit", 6}}}).ok());
  EXPECT_EQ(*ParseSyncMode({}), SyncMode{}) << "no name is bsp";
}

TEST(TrainingPlan, KnowsWhoseOptimizerRemembersGradients) {
  const auto remembers = [](OptimizerSettings optimizer) {
    TrainingSettings settings;
    settings.optimizer = std::move(optimizer);
    const std::vector<TrainedTensor> tensors(1);
    return (*TrainingPlan::Create(settings, tensors))->RemembersGradients(0);
  };
  EXPECT_FALSE(remembers({.name = "sgd"}));
  EXPECT_FALSE(remembers({.name = "sgd", .options = {{"ema_decay", 0.9}}}));
  EXPECT_FALSE(remembers({.name = "asgd"})) << "averages weights";
  EXPECT_TRUE(remembers({.name = "sgd", .options = {{"momentum", 0.9}}}));
  for (const char* name : {"adam", "adamw", "lion", "adagrad", "rmsprop", "rprop"}) {
    EXPECT_TRUE(remembers({.name = name})) << name;
  }
}

TEST(GradientOptions, EachIsOffByDefaultAndExplained) {
  for (const OptionSpec& spec : GradientOptions()) {
    EXPECT_EQ(spec.standard, 0) << spec.name;
    EXPECT_FALSE(spec.meaning.empty()) << spec.name;
  }
}

}  // namespace
}  // namespace syncline
