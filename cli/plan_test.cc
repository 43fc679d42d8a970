#include "cli/plan.h"

#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/app.h"
#include "cli/plan_file.h"
#include "comm/base/exit_codes.h"
#include "comm/base/temp_directory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace syncline {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

// ---- The job file ----

JobSpec Parsed(const std::string& text) {
  auto spec = ParseJobFile(text, "job.yaml");
  EXPECT_TRUE(spec.ok()) << spec.status();
  return *std::move(spec);
}

std::string Refusal(const std::string& text) {
  const auto spec = ParseJobFile(text, "job.yaml");
  EXPECT_EQ(ExitCodeOf(spec.status()), kExitUsage) << text;
  return std::string(spec.status().message());
}

// Otherwise a file could write to the terminal.
TEST(PlanFile, QuotesOnlyPrintableTextInErrors) {
  EXPECT_THAT(Refusal("\"w\\e[2J\": 1"), HasSubstr("'w\\x1b[2J' is not a key of a job"));
}

TEST(PlanFile, TakesAModeAsFlagsHaveIt) {
  const NamedOptions expected = {"ssp", {{"staleness", 3}}};
  for (const char* mode :
       {"{name: ssp, options: {staleness: 3}}", "ssp:staleness=3", "ssp:3"}) {
    EXPECT_EQ(Parsed(absl::StrCat("mode: ", mode)).training.mode, expected) << mode;
  }
  EXPECT_EQ(Parsed("mode: asp").training.mode.name, "asp");
  EXPECT_THAT(Refusal("mode: bsp:3"), HasSubstr("write NAME=3"));
}

TEST(PlanFile, HoldsEverySettingOfAJob) {
  const JobSpec spec = Parsed(R"(
name: bert
workers: 8
optimizer: {name: adamw, options: {beta1: 0.8, lr: 1e-4}, state: int8}
schedule: {name: cosine, options: {total_steps: 1000}}
gradient: {clip_global_norm: 1}
loss_scaling: {name: deepspeed, options: {hysteresis: 3}}
accumulate_steps: 4
aggregation: arrival
nonfinite_steps: skip
push_codec: fp16
publish_codec: fp32
checkpoint_every: 500 steps
checkpoint_keep: 7
durability: disk
tensors:
  - {name: embed, shape: [300, 700], learning_rate_scale: 0.1, state: f32}
  - {name: head, shape: [], options: {weight_decay: 0}, frozen: true}
)");
  EXPECT_EQ(spec.name, "bert");
  EXPECT_EQ(spec.workers, 8u);
  EXPECT_EQ(spec.settings, (JobSettings{.push_codec = "fp16",
                                        .publish_codec = "fp32",
                                        .checkpoint_every = {.steps = 500},
                                        .checkpoint_keep = 7,
                                        .durability = "disk"}));
  EXPECT_THAT(Refusal("name: a\ndurability: paper"),
              HasSubstr(":2: durability: durability is 'paper', allowed are none"));
  EXPECT_THAT(Refusal("durability: [disk]"), HasSubstr("durability must be one value"));
  const TrainingSettings expected = {
      .optimizer = {.name = "adamw",
                    .options = {{"beta1", 0.8}, {"lr", 1e-4}},
                    .state = "int8"},
      .schedule = {"cosine", {{"total_steps", 1000}}},
      .gradient = {{"clip_global_norm", 1}},
      .loss_scaling = {"deepspeed", {{"hysteresis", 3}}},
      .nonfinite_steps = NonfiniteSteps::kSkip,
      .accumulate_steps = 4,
      .aggregation = Aggregation::kArrival};
  EXPECT_EQ(spec.training, expected);
  ASSERT_EQ(spec.tensors.size(), 2u);
  EXPECT_EQ(spec.tensors[0].shape, (std::vector<uint64_t>{300, 700}));
  EXPECT_EQ(spec.tensors[0].group,
            (GroupOptions{.learning_rate_scale = 0.1, .state = "f32"}));
  EXPECT_EQ(spec.tensors[1].elements(), 1u);
  EXPECT_EQ(spec.tensors[1].group,
            (GroupOptions{.options = {{"weight_decay", 0}}, .frozen = true}));
}

TEST(PlanFile, TakesANameAloneWithItsDefaults) {
  const JobSpec spec = Parsed("optimizer: lion\nloss_scaling: torch\n");
  EXPECT_EQ(spec.training.optimizer, OptimizerSettings{.name = "lion"});
  EXPECT_EQ(spec.training.loss_scaling, NamedOptions{.name = "torch"});
  EXPECT_EQ(spec.training.schedule.name, "constant");
}

TEST(PlanFile, NamesLineAndNearestKey) {
  EXPECT_EQ(Refusal("workers: 2\noptimzer: adamw\n"),
            "job.yaml:2: 'optimzer' is not a key of a job; did you mean 'optimizer'?");
  EXPECT_THAT(Refusal("optimizer: {nam: adamw}"),
              HasSubstr("'nam' is not a key of an optimizer; did you mean 'name'?"));
  EXPECT_THAT(
      Refusal("tensors:\n  - {name: a, shap: [3]}"),
      HasSubstr("job.yaml:2: 'shap' is not a key of a tensor; did you mean 'shape'"));
  EXPECT_THAT(Refusal("schedule: {state: x}"), HasSubstr("is not a key of a schedule"));
}

TEST(PlanFile, SaysWhatAValueMustBe) {
  EXPECT_EQ(Refusal("workers: many"), "job.yaml:1: workers must be a whole number");
  EXPECT_THAT(Refusal("workers: -1"), HasSubstr("whole number"));
  EXPECT_THAT(Refusal("workers: [1]"), HasSubstr("whole number"));
  EXPECT_THAT(Refusal("aggregation: random"), HasSubstr("arrival or rank_order"));
  EXPECT_THAT(Refusal("gradient: {clip_value: big}"),
              HasSubstr("gradient: clip_value must be a number"));
  EXPECT_THAT(Refusal("gradient: 3"), HasSubstr("{option: number}"));
  EXPECT_THAT(Refusal("optimizer: [adamw]"), HasSubstr("an optimizer must be"));
  EXPECT_THAT(Refusal("tensors: 3"), HasSubstr("must be a list"));
  EXPECT_THAT(Refusal("tensors: [{shape: 3}]"), HasSubstr("[300, 700]"));
  EXPECT_THAT(Refusal("tensors: [{shape: [3, x]}]"), HasSubstr("whole numbers"));
  EXPECT_THAT(Refusal("3"), HasSubstr("key: value"));
  EXPECT_THAT(Refusal(""), HasSubstr("key: value"));
  EXPECT_THAT(Refusal("a: [\n"), HasSubstr("job.yaml:"));
}

// ---- The sizes ----

JobSpec Job(std::vector<TensorSpec> tensors) {
  return {.name = "job",
          .workers = 4,
          .training = {.optimizer = {.name = "adamw"}},
          .tensors = std::move(tensors)};
}

PlannedMemory Memory(const JobSpec& spec, const ClusterSize& cluster = {}) {
  auto memory = PlanJobMemory(spec, cluster);
  EXPECT_TRUE(memory.ok()) << memory.status();
  return *std::move(memory);
}

TEST(PlanMemoryOfJob, PlacesBlocksAsTheCoordinatorDoes) {
  // Four blocks of a million elements, on the four shards of two servers.
  const PlannedMemory memory =
      Memory(Job({{.name = "w", .shape = {4, 1 << 20}}}), {.servers = 2, .threads = 2});
  for (const MemoryUse& shard : memory.plan.shards) {
    EXPECT_EQ(shard.elements, 1u << 20);
  }
  EXPECT_EQ(memory.Server(0), memory.Server(1));
  EXPECT_EQ(memory.Server(1).resident(), (2u << 20) * 12);
}

TEST(PlanMemoryOfJob, KeepsTensorsTogetherThatAreSteppedWhole) {
  JobSpec spec = Job({{.name = "w", .shape = {4, 1 << 20}}});
  spec.training.optimizer.name = "lamb";
  const PlannedMemory memory = Memory(spec, {.servers = 2});
  EXPECT_EQ(memory.Server(0).elements, 4u << 20);
  EXPECT_EQ(memory.Server(1).elements, 0u);
}

TEST(PlanMemoryOfJob, RefusesWhatACoordinatorWouldRefuse) {
  EXPECT_EQ(PlanJobMemory(Job({}), {}).status().code(),
            absl::StatusCode::kInvalidArgument);
  JobSpec spec = Job({{.name = "w", .shape = {4}}});
  spec.settings.push_codec = "bf61";
  EXPECT_THAT(std::string(PlanJobMemory(spec, {}).status().message()),
              HasSubstr("'bf16'"));
  EXPECT_FALSE(PlanJobMemory(Job({{.name = "w"}}), {.servers = 0}).ok());
}

TEST(PlanTable, ShowsTheLargestTensorsAndSumsUpTheRest) {
  std::vector<TensorSpec> tensors;
  for (uint64_t i = 0; i < 25; ++i) {
    tensors.push_back({.name = absl::StrCat("t", i, "."), .shape = {1000 + i}});
  }
  const std::string table = MemoryAsTable(Memory(Job(tensors), {.servers = 2}));
  EXPECT_THAT(table, HasSubstr("job job: adamw, f32 state, pushes bf16"));
  EXPECT_LT(table.find("t24."), table.find("t23."));
  EXPECT_THAT(table, HasSubstr("t5."));
  EXPECT_THAT(table, Not(HasSubstr("t4.")));
  EXPECT_THAT(table, ContainsRegex("5 others +5010 +20\\.0 kB +0 B +40\\.1 kB"));
  EXPECT_THAT(table, ContainsRegex("all +25300 +101\\.2 kB +0 B +202\\.4 kB"));
  EXPECT_THAT(table, HasSubstr("state: mean 101.2 kB, variance 101.2 kB\n"));
  EXPECT_THAT(table, HasSubstr("between steps: 303.6 kB\n"));
}

// ---- The command ----

class PlanCommand : public testing::Test {
 protected:
  int Run(std::vector<const char*> arguments) {
    for (const char* word : {"memory", "plan", "syncline"}) {
      arguments.insert(arguments.begin(), word);
    }
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    const AddCommand commands[] = {AddPlan};
    const int code = RunApp(arguments, commands);
    out_ = testing::internal::GetCapturedStdout();
    err_ = testing::internal::GetCapturedStderr();
    return code;
  }

  std::string out_;
  std::string err_;
};

TEST_F(PlanCommand, PlansSevenBillionParametersWithoutAFile) {
  ASSERT_EQ(Run({"--params", "7e9", "--optimizer", "adamw", "--json"}), 0) << err_;
  const auto json = nlohmann::json::parse(out_);
  EXPECT_EQ(json["job"]["elements"], uint64_t{7'000'000'000});
  EXPECT_EQ(json["job"]["master"], uint64_t{28'000'000'000});
  EXPECT_EQ(json["job"]["state"]["variance"], uint64_t{28'000'000'000});
  EXPECT_EQ(json["job"]["resident"], uint64_t{84'000'000'000});
  EXPECT_EQ(json["servers"][0]["shards"].size(), 1u);
  ASSERT_EQ(Run({"--params", "7e9", "--optimizer", "adamw", "--state", "int8"}), 0);
  EXPECT_THAT(out_, HasSubstr("between steps: 42.2 GB\n"));
}

TEST_F(PlanCommand, ReadsAFileThatFlagsOverrule) {
  const TempDirectory directory;
  const std::string path = directory.File("plan.yaml");
  std::ofstream(path) << "workers: 2\noptimizer: adamw\n"
                         "tensors: [{name: w, shape: [64, 64]}]\n";
  ASSERT_EQ(Run({path.c_str(), "--json"}), 0) << err_;
  const auto two = nlohmann::json::parse(out_);
  EXPECT_EQ(two["tensors"][0]["state"].size(), 2u);
  ASSERT_EQ(Run({path.c_str(), "--json", "--workers", "6", "--optimizer", "sgd"}), 0);
  const auto six = nlohmann::json::parse(out_);
  EXPECT_EQ(six["job"]["held"], 3 * two["job"]["held"].get<uint64_t>());
  EXPECT_TRUE(six["tensors"][0]["state"].empty());
}

TEST_F(PlanCommand, EndsWithTheUsageCodeWhenItIsAskedWrong) {
  EXPECT_EQ(Run({}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("either a job file or --params"));
  EXPECT_EQ(Run({"job.yaml", "--params", "3"}), kExitUsage);
  EXPECT_EQ(Run({"--params", "nan"}), kExitUsage);
  EXPECT_EQ(Run({"--params", "1e30"}), kExitUsage);
  EXPECT_EQ(Run({"--params", "7", "--optimizer", "adamv"}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("'adam"));
  EXPECT_EQ(Run({"/nonexistent.yaml"}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("cannot read"));
  EXPECT_EQ(Run({"--parms", "7"}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("did you mean --params?"));
}

}  // namespace
}  // namespace syncline
