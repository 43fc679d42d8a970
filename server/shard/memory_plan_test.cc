#include "server/shard/memory_plan.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/shard/shard_test_util.h"

namespace syncline {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

const CodecRegistry& Codecs() {
  static const CodecRegistry codecs = CodecRegistry::Builtin();
  return codecs;
}

std::vector<TrainedTensor> Tensors(const std::vector<std::vector<uint64_t>>& shapes) {
  std::vector<TrainedTensor> tensors;
  for (const auto& shape : shapes) tensors.push_back({.shape = TensorShape(shape)});
  return tensors;
}

std::vector<BlockRange> BlocksOf(const std::vector<TrainedTensor>& tensors) {
  std::vector<uint64_t> elements;
  for (const TrainedTensor& tensor : tensors) elements.push_back(tensor.shape.elements());
  return CutIntoBlocks(elements);
}

// Pushes in BF16.
std::vector<TensorTransfers> Transfers(const std::vector<TrainedTensor>& tensors,
                                       std::string_view publish) {
  std::vector<Transfer::Shape> shapes;
  for (const TrainedTensor& tensor : tensors) {
    shapes.push_back(
        {.elements = tensor.shape.elements(), .dimensions = tensor.shape.dimensions()});
  }
  return *ParseTransfers("bf16", publish, shapes);
}

// Places all blocks on one shard.
MemoryPlan Plan(const TrainingSettings& training,
                const std::vector<TrainedTensor>& tensors, uint32_t workers = 1) {
  const std::vector<BlockRange> blocks = BlocksOf(tensors);
  const std::vector<uint32_t> shard_of_block(blocks.size(), 0);
  auto plan = PlanMemory({.training = training,
                          .tensors = tensors,
                          .transfers = Transfers(tensors, "bf16"),
                          .workers = workers},
                         {.blocks = blocks, .shard_of_block = shard_of_block});
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *std::move(plan);
}

// ---- Against a shard that runs the job ----

// Two members push one step. `before` and `after` are the bytes that the shard reports.
struct Measured {
  size_t before = 0;
  size_t one_held = 0;  // one of two contributions to every block has come
  size_t after = 0;
};

Measured Measure(const TrainingSettings& training, const std::vector<uint64_t>& tensors) {
  ShardRig rig({.training = training, .tensors = tensors});
  const size_t blocks = CutIntoBlocks(tensors).size();
  rig.Commit(1, {rig.Member(0), rig.Member(1)});
  for (uint32_t b = 0; b < blocks; ++b) {
    rig.Seed(b, SomeValues(rig.range(b).elements, b));
  }
  Measured measured = {.before = rig.shard().resident_bytes()};
  for (uint32_t b = 0; b < blocks; ++b) rig.Push(0, b, 0);
  measured.one_held = rig.shard().resident_bytes();
  for (uint32_t b = 0; b < blocks; ++b) rig.Push(1, b, 0);
  measured.after = rig.shard().resident_bytes();
  return measured;
}

TEST(MemoryPlan, IsWhatTheShardReallyTakes) {
  // Sizes on both sides of the threshold for compact state, tensors of several blocks,
  // and odd sizes.
  const std::vector<uint64_t> sizes = {kBlockElements + 1001, 5000, 4095, 7};
  std::vector<std::vector<uint64_t>> shapes;
  for (const uint64_t size : sizes) shapes.push_back({size});
  for (const std::string_view name : OptimizerNames()) {
    for (const char* state : {"f32", "bf16", "int8"}) {
      const TrainingSettings training = {
          .optimizer = {.name = std::string(name), .state = state}};
      if (!TrainingPlan::Create(training, Tensors(shapes)).ok()) continue;  // L-BFGS
      const MemoryUse planned = Plan(training, Tensors(shapes), 2).job;
      const Measured measured = Measure(training, sizes);
      EXPECT_EQ(planned.resident() - planned.factors, measured.before) << name << state;
      EXPECT_EQ(planned.held, 2 * (measured.one_held - measured.before)) << name;
      if (TrainingPlan::Create(training, {})->get()->NeedsDecision()) continue;
      EXPECT_EQ(planned.resident(), measured.after) << name << " " << state;
    }
  }
}

TEST(MemoryPlan, CountsTheSumOfAccumulationAndOfArrival) {
  const std::vector<uint64_t> sizes = {100'000};
  const auto tensors = Tensors({{100'000}});
  TrainingSettings training = {.optimizer = {.name = "adamw"}, .accumulate_steps = 4};
  const MemoryUse accumulated = Plan(training, tensors, 8).job;
  EXPECT_EQ(accumulated.accumulator, 400'000u);
  EXPECT_EQ(accumulated.resident(), Measure(training, sizes).after);
  training.accumulate_steps = 1;
  training.aggregation = Aggregation::kArrival;
  const MemoryUse arrival = Plan(training, tensors, 8).job;
  EXPECT_EQ(arrival.resident(), Measure(training, sizes).after);
  // There is one contribution instead of one for each worker.
  EXPECT_EQ(accumulated.held, 8 * arrival.held);
}

// ---- By hand ----

TEST(MemoryPlan, NamesEachSlotWithItsBytes) {
  const MemoryUse use =
      Plan({.optimizer = {.name = "adamw", .options = {{"amsgrad", 1}}, .state = "int8"}},
           Tensors({{4096}}))
          .job;
  EXPECT_EQ(use.elements, 4096u);
  EXPECT_EQ(use.master, 16384u);
  // 16 runs of 256 elements and a scale.
  EXPECT_THAT(use.state, ElementsAre(Pair("max_variance", 4160), Pair("mean", 4160),
                                     Pair("variance", 4160)));
  // A tile's header and two bytes for each element, both ways.
  EXPECT_EQ(use.published, use.held);
  EXPECT_EQ(use.held, MaxBlockBytes(**Codecs().FindByName("bf16"), 4096));
  EXPECT_GE(use.held, 8192u);
}

TEST(MemoryPlan, DeltasNeedAViewOfWhatWorkersHold) {
  const auto tensors = Tensors({{300, 200}, {60'000}});
  const TrainingSettings training = {.optimizer = {.name = "adamw"}};
  const std::vector<BlockRange> blocks = BlocksOf(tensors);
  const std::vector<uint32_t> shard_of_block(blocks.size(), 0);
  const auto plan = PlanMemory({.training = training,
                                .tensors = tensors,
                                .transfers = Transfers(tensors, "onebit")},
                               {.blocks = blocks, .shard_of_block = shard_of_block});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->tensors[0].view, 240'000u);
  EXPECT_EQ(plan->tensors[1].view, 0u) << "vectors travel densely";
  EXPECT_LT(plan->tensors[0].published, 240'000u / 25);
}

TEST(MemoryPlan, FrozenTensorsTakeTheirWeightsAlone) {
  auto tensors = Tensors({{1000}, {1000}});
  tensors[0].group.frozen = true;
  const MemoryPlan plan =
      Plan({.optimizer = {.name = "adamw"}, .accumulate_steps = 2}, tensors);
  EXPECT_EQ(plan.tensors[0].resident(), 4000u);
  EXPECT_EQ(plan.tensors[0].held, 0u);
  EXPECT_EQ(plan.tensors[1].resident(), 4000u * 4);
}

TEST(MemoryPlan, GroupsHaveTheirOwnState) {
  auto tensors = Tensors({{8192}, {8192}});
  tensors[1].group.state = "bf16";
  const MemoryPlan plan = Plan({.optimizer = {.name = "lion"}}, tensors);
  EXPECT_THAT(plan.tensors[0].state, ElementsAre(Pair("mean", 32768)));
  EXPECT_THAT(plan.tensors[1].state, ElementsAre(Pair("mean", 16384)));
}

TEST(MemoryPlan, FactorsOfAMatrixAreItsRowsAndColumns) {
  const MemoryUse use =
      Plan({.optimizer = {.name = "adafactor"}}, Tensors({{300, 700}})).job;
  EXPECT_EQ(use.factors, (300 + 700) * sizeof(float));
  EXPECT_EQ(use.all_state(), 0u);
}

TEST(MemoryPlan, ShardsAddUpToTheJobAndToTheTensors) {
  const auto tensors = Tensors({{3, 2 * kTileElements}, {500}, {0}});
  const std::vector<BlockRange> blocks = BlocksOf(tensors);
  ASSERT_EQ(blocks.size(), 4u);
  const std::vector<uint32_t> shard_of_block = {0, 1, 0, 1};
  const TrainingSettings training = {.optimizer = {.name = "adamw", .state = "int8"}};
  const auto plan =
      PlanMemory({.training = training,
                  .tensors = tensors,
                  .transfers = Transfers(tensors, "fp32"),
                  .workers = 3},
                 {.blocks = blocks, .shard_of_block = shard_of_block, .shards = 3});
  ASSERT_TRUE(plan.ok()) << plan.status();
  MemoryUse shards, all_tensors;
  for (const MemoryUse& use : plan->shards) shards += use;
  for (const MemoryUse& use : plan->tensors) all_tensors += use;
  EXPECT_EQ(shards, plan->job);
  EXPECT_EQ(all_tensors, plan->job);
  EXPECT_EQ(plan->shards[0].master, 16u * kTileElements);
  EXPECT_EQ(plan->shards[2], MemoryUse{});
  EXPECT_EQ(plan->tensors[2], MemoryUse{});
}

TEST(MemoryPlan, RefusesWhatNoJobMayHave) {
  const TrainingSettings training = {.optimizer = {.name = "adamv"}};
  EXPECT_EQ(PlanMemory({.training = training}, {}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace syncline
