// The same training on 1 shard and on 1, then 3, then 2 shards gives the same bits.
#include <algorithm>
#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/shard/shard_test_util.h"

namespace syncline {
namespace {

constexpr uint32_t kWorkers = 2;
constexpr uint64_t kStepsOfAPhase = 2;

struct Case {
  std::string name;
  TrainingSettings training;
  std::string codec = "bf16";
};
void PrintTo(const Case& one, std::ostream* out) { *out << one.name; }

const std::vector<std::vector<uint64_t>> kShapes = {
    {300, 4000},  // two blocks
    {kTileElements + 5}, {64, 3, 3, 3}, {7}, {5}, {6}, {8}};
constexpr uint32_t kFirstFrozen = 4;  // number of a tensor

// Shards of one job that share its tensors; `count` changes from phase to phase.
class Cluster {
 public:
  Cluster(const TrainingSettings& training, const std::string& codec,
          uint64_t cut_every = 0)
      : training_(training),
        cut_every_(cut_every),
        transfers_{.push = *ParseTransfer(codec), .publish = *ParseTransfer(codec)} {
    std::vector<uint64_t> elements;
    for (const auto& shape : kShapes) {
      tensors_.push_back({.shape = TensorShape(shape)});
      elements.push_back(tensors_.back().shape.elements());
      tensors_.back().group.frozen = tensors_.size() > kFirstFrozen;
    }
    ranges_ = CutIntoBlocks(elements);
    plan_ = *TrainingPlan::Create(training, tensors_);
  }

  // Replaces the shards by new ones that take over all blocks.
  void Reshard(uint32_t count) {
    std::vector<ShardSnapshot> snapshots;
    for (const auto& shard : shards_) snapshots.push_back(*shard->Save());
    Replace(count, snapshots);
    if (snapshots.empty()) Seed();
  }

  // Replaces the shards by new ones that begin with the last cut, given block by block.
  void RestartFromCut(uint32_t count) {
    std::vector<ShardSnapshot> parts;
    ASSERT_EQ(cut_.size(), ranges_.size());
    ASSERT_EQ(rest_.size(), shards_.size());
    for (const auto& [block, saved] : cut_) {
      parts.emplace_back().blocks[block] = *saved;
      parts.back().loss_scale = rest_.at(0)->loss_scale;
    }
    for (const auto& rest : rest_) parts.push_back(*rest);
    Replace(count, parts);
    step_ = cut_step_;
  }

  uint64_t cut_step() const { return cut_step_; }

 private:
  void Replace(uint32_t count, const std::vector<ShardSnapshot>& parts) {
    shards_.clear();
    for (uint32_t index = 0; index < count; ++index) {
      std::vector<ShardBlock> blocks;
      for (uint32_t block = 0; block < ranges_.size(); ++block) {
        if (OwnerOf(block, count) == index) blocks.push_back({block, ranges_[block]});
      }
      ShardOptions options = {.job = 7, .shard = index};
      options.transfers.assign(tensors_.size(), transfers_);
      options.seed_codec = *codecs_.Find(CodecId::kFp32);
      options.training = training_;
      options.tensors = tensors_;
      options.cut_every = cut_every_;
      shards_.push_back(*Shard::Create(options, blocks, pool_));
      for (const ShardSnapshot& part : parts) {
        EXPECT_TRUE(shards_.back()->Load(part).ok());
      }
      if (!parts.empty()) {
        EXPECT_TRUE(shards_.back()->CheckLoaded().ok());
      }
      ShardCommit commit{.epoch = ++epoch_};
      for (uint32_t rank = 0; rank < kWorkers; ++rank) commit.members.push_back({rank});
      shards_.back()->Apply(commit);
    }
    epochs_.clear();
    for (const auto& shard : shards_) epochs_.push_back(shard->epoch());
  }

 public:
  void Train(uint64_t steps) {
    for (uint64_t i = 0; i < steps; ++i, ++step_) Step();
  }

  std::vector<float> Weights() const {
    std::vector<float> all;
    for (uint32_t block = 0; block < ranges_.size(); ++block) {
      const auto weights = ShardOf(block).block_weights(block);
      all.insert(all.end(), weights.begin(), weights.end());
    }
    return all;
  }

  // Returns what a worker would receive now.
  std::vector<float> Views() {
    std::vector<float> all;
    for (uint32_t block = 0; block < ranges_.size(); ++block) {
      MessageHeader header;
      header.kind = static_cast<uint16_t>(MessageKind::kPull);
      header.block = block;
      header.epoch = ShardOf(block).epoch();
      const ShardOutputs outputs = ShardOf(block).Apply(ShardMessage{header, {}});
      const auto& reply = std::get<ShardReply>(outputs.at(0));
      const Buffer payload = Gather(reply.payload);
      const Codec* fp32 = *codecs_.Find(CodecId::kFp32);
      const auto view =
          ParseBlock(payload.view(), {ranges_[block], reply.header.step, header.epoch},
                     {fp32, transfers_.publish.codec.get()});
      EXPECT_TRUE(view.ok()) << view.status();
      for (const TileView& tile : view->tiles) {
        std::vector<float> values(tile.elements);
        EXPECT_TRUE(tile.codec->Decode(tile.bytes, values).ok());
        all.insert(all.end(), values.begin(), values.end());
      }
    }
    return all;
  }

 private:
  // Blocks of a tensor that steps as a whole stay together.
  uint32_t OwnerOf(uint32_t block, uint32_t count) const {
    const uint32_t tensor = ranges_[block].tensor;
    return (plan_->NeedsWholeTensor(tensor) ? tensor : block) % count;
  }
  Shard& ShardOf(uint32_t block) const {
    return *shards_[OwnerOf(block, static_cast<uint32_t>(shards_.size()))];
  }

  void Tell(uint32_t block, MessageKind kind, const std::vector<float>& values,
            uint32_t rank) {
    const uint32_t owner = OwnerOf(block, static_cast<uint32_t>(shards_.size()));
    MessageHeader header;
    header.kind = static_cast<uint16_t>(kind);
    header.rank = rank;
    header.block = block;
    header.epoch = epochs_[owner];
    header.step = step_;
    header.samples = kind == MessageKind::kSeed ? 0 : 1 + rank;
    const Codec& codec = kind == MessageKind::kSeed ? **codecs_.Find(CodecId::kFp32)
                                                    : *transfers_.push.codec;
    std::vector<float> copy = values;
    const Buffer payload =
        Gather(EncodeBlock(codec, {ranges_[block], step_, header.epoch}, copy,
                           Checksum::kHeaderOnly, pool_));
    Take(ShardOf(block).Apply(ShardMessage{header, Slice::Of(payload)}));
  }

  void Take(const ShardOutputs& outputs) {
    for (const ShardOutput& output : outputs) {
      if (const auto* figures = std::get_if<ShardFigures>(&output)) {
        figures_[figures->block] = figures->figures;
      }
      if (const auto* copied = std::get_if<ShardCopied>(&output)) {
        if (std::exchange(cut_step_, copied->step) != copied->step) {
          cut_.clear();
          rest_.clear();
        }
        if (IsTrained(copied->block)) {
          EXPECT_EQ(copied->saved->version, copied->step);
        }
        EXPECT_TRUE(cut_.emplace(copied->block, copied->saved).second);
      }
      if (const auto* done = std::get_if<ShardCutDone>(&output)) {
        EXPECT_EQ(done->step, cut_step_);
        EXPECT_EQ(done->training, training_);
        rest_.push_back(done->rest);
      }
    }
  }

  void Seed() {
    for (uint32_t block = 0; block < ranges_.size(); ++block) {
      Tell(block, MessageKind::kSeed, SomeValues(ranges_[block].elements, block), 0);
    }
  }

  bool IsTrained(uint32_t block) const { return ranges_[block].tensor < kFirstFrozen; }

  // Makes a step. A cut under way gets its next frozen block before, so it takes several
  // steps.
  void Step() {
    for (const auto& shard : shards_) {
      Take(
          shard->Apply(ShardCut{.step = cut_step_, .kind = ShardCut::Kind::kNextFrozen}));
    }
    figures_.clear();
    for (uint32_t rank = 0; rank < kWorkers; ++rank) {
      for (uint32_t block = 0; block < ranges_.size(); ++block) {
        if (!IsTrained(block)) continue;
        Tell(block, MessageKind::kPush,
             SomeValues(ranges_[block].elements, 1000 * step_ + 10 * block + rank), rank);
      }
    }
    if (plan_->NeedsDecision()) Decide();
  }

  // Reports in block order, whatever shard owns a block.
  void Decide() {
    for (const auto& [block, parts] : figures_) ASSERT_TRUE(IsTrained(block));
    ShardDecision decision = {.step = step_};
    std::vector<double> sums(figures_.begin()->second.size());
    for (const auto& [block, parts] : figures_) {
      for (size_t i = 0; i < sums.size(); ++i) sums[i] += parts[i];
    }
    decision.gradient_scale = static_cast<float>(1 / (std::sqrt(sums[0]) + 1e-6));
    decision.figures.assign(sums.begin() + 1, sums.end());
    for (const auto& shard : shards_) Take(shard->Apply(decision));
  }

  const TrainingSettings training_;
  const uint64_t cut_every_;
  const TensorTransfers transfers_;
  const CodecRegistry codecs_ = CodecRegistry::Builtin();
  BufferPool pool_{64 << 20};
  std::vector<TrainedTensor> tensors_;
  std::vector<BlockRange> ranges_;
  std::unique_ptr<const TrainingPlan> plan_;
  std::vector<std::unique_ptr<Shard>> shards_;
  std::vector<uint64_t> epochs_;
  std::map<uint32_t, std::vector<double>> figures_;
  uint64_t epoch_ = 0;
  uint64_t step_ = 0;
  // The latest cut.
  uint64_t cut_step_ = 0;
  std::map<uint32_t, std::shared_ptr<const BlockSnapshot>> cut_;
  std::vector<std::shared_ptr<const ShardSnapshot>> rest_;
};

void ExpectSameBits(std::span<const float> got, std::span<const float> expected) {
  ASSERT_EQ(got.size(), expected.size());
  EXPECT_TRUE(std::ranges::equal(got, expected, [](float a, float b) {
    return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
  }));
}

class Resharding : public ::testing::TestWithParam<Case> {};

TEST_P(Resharding, FromOneToThreeToTwoGivesTheSameBits) {
  Cluster one(GetParam().training, GetParam().codec);
  one.Reshard(1);
  one.Train(3 * kStepsOfAPhase);

  Cluster moving(GetParam().training, GetParam().codec);
  for (const uint32_t shards : {1u, 3u, 2u}) {
    moving.Reshard(shards);
    moving.Train(kStepsOfAPhase);
  }
  const std::vector<float> expected = one.Weights();
  ExpectSameBits(moving.Weights(), expected);
  ExpectSameBits(moving.Views(), one.Views());
  EXPECT_TRUE(std::ranges::all_of(expected, [](float w) { return std::isfinite(w); }));
}

// Blocks reach the cut one after the other, while others are pushed already. Frozen
// blocks are copied while the training continues.
TEST_P(Resharding, FromACutTheTrainingGoesOnWithTheSameBits) {
  Cluster one(GetParam().training, GetParam().codec);
  one.Reshard(1);
  one.Train(3 * kStepsOfAPhase);

  Cluster dying(GetParam().training, GetParam().codec, 3);
  dying.Reshard(2);
  dying.Train(5);
  EXPECT_EQ(dying.cut_step(), 3);
  dying.RestartFromCut(3);
  dying.Train(3);
  ExpectSameBits(dying.Weights(), one.Weights());
  ExpectSameBits(dying.Views(), one.Views());
}

INSTANTIATE_TEST_SUITE_P(
    AllKinds, Resharding,
    ::testing::Values(
        Case{"AdamW", {.optimizer = {.name = "adamw"}}},
        Case{"AdamWWithInt8State", {.optimizer = {.name = "adamw", .state = "int8"}}},
        Case{"Clipped",
             {.optimizer = {.name = "sgd", .options = {{"momentum", 0.9}}},
              .gradient = {{"clip_global_norm", 1.0}}}},
        Case{"Lamb", {.optimizer = {.name = "lamb"}}},
        Case{"Adafactor", {.optimizer = {.name = "adafactor"}}},
        Case{"Lbfgs", {.optimizer = {.name = "lbfgs", .options = {{"history_size", 3}}}}},
        Case{"Accumulating", {.optimizer = {.name = "adamw"}, .accumulate_steps = 3}},
        Case{"OneBit", {.optimizer = {.name = "adamw"}}, "onebit"},
        Case{"TopK", {.optimizer = {.name = "sgd"}}, "topk:ratio=0.05,values=int8"}),
    [](const auto& info) { return info.param.name; });

TEST(ReshardingRules, WaitsForTheEndOfAStep) {
  ShardRig rig({});
  rig.Commit(1, {rig.Member(0), rig.Member(1)});
  rig.Seed(0, SomeValues(100, 1));
  rig.Push(0, 0, 0);
  EXPECT_EQ(rig.shard().Save().status().code(), absl::StatusCode::kFailedPrecondition);
  rig.Push(1, 0, 0);
  EXPECT_TRUE(rig.shard().Save().ok());
}

TEST(ReshardingRules, RefusesSnapshotsThatLackABlock) {
  ShardRig rig({.tensors = {100, 100}});
  ShardSnapshot one = *rig.shard().Save();
  one.blocks.erase(1);
  EXPECT_TRUE(rig.shard().Load(one).ok());
  EXPECT_EQ(rig.shard().CheckLoaded().message(), "the snapshots contain 1 of 2 blocks");
}

TEST(ReshardingRules, ABlockThatComesTwiceDoesNotStandForOneThatIsMissing) {
  ShardRig rig({.tensors = {100, 100}});
  ShardSnapshot one = *rig.shard().Save();
  one.blocks.erase(1);
  EXPECT_TRUE(rig.shard().Load(one).ok());
  const absl::Status status = rig.shard().Load(one);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "the snapshots contain block 0 twice");
}

template <typename Output>
std::vector<Output> Only(const ShardOutputs& outputs) {
  std::vector<Output> only;
  for (const ShardOutput& output : outputs) {
    if (const auto* one = std::get_if<Output>(&output)) only.push_back(*one);
  }
  return only;
}

TEST(Cuts, AnOrderBetweenPrepareAndCommitCopiesAtOnceWhateverIsHeld) {
  ShardRig rig({});
  rig.Commit(1, {rig.Member(0), rig.Member(1)});
  rig.Seed(0, SomeValues(100, 1));
  rig.Push(0, 0, 0);
  rig.Push(1, 0, 0);
  rig.Push(0, 0, 1);
  rig.shard().Apply(ShardPrepare{2});
  const ShardOutputs outputs = rig.shard().Apply(ShardCut{1});
  const auto copied = Only<ShardCopied>(outputs);
  ASSERT_EQ(copied.size(), 1);
  EXPECT_EQ(copied[0].saved->version, 1);
  EXPECT_EQ(Only<ShardCutDone>(outputs).size(), 1);
  EXPECT_TRUE(rig.shard().Apply(ShardCut{1}).empty());  // a repetition
}

TEST(Cuts, AnOrderForALaterStepWaitsForIt) {
  ShardRig rig({});
  rig.Commit(1, {rig.Member(0)});
  rig.Seed(0, SomeValues(100, 1));
  EXPECT_TRUE(rig.shard().Apply(ShardCut{2}).empty());
  EXPECT_TRUE(Only<ShardCopied>(rig.Push(0, 0, 0)).empty());
  EXPECT_EQ(Only<ShardCopied>(rig.Push(0, 0, 1)).size(), 1);
}

TEST(Cuts, FrozenBlocksComeOneByOneAfterTheFirstOfTheOthersOrAtOnceWhereTheyAreAlone) {
  ShardRig both({.tensors = {100, 100, 100}, .frozen = {1, 2}});
  both.Commit(1, {both.Member(0)});
  for (const uint32_t block : {0u, 1u, 2u}) both.Seed(block, SomeValues(100, block));
  EXPECT_TRUE(both.shard().Apply(ShardCut{1}).empty());
  const auto first = Only<ShardCopied>(both.Push(0, 0, 0));
  ASSERT_EQ(first.size(), 1);
  EXPECT_TRUE(first[0].more);
  EXPECT_TRUE(both.shard().Apply(ShardCut{1}).empty()) << "an order is not a kNextFrozen";
  const ShardCut next = {.step = 1, .kind = ShardCut::Kind::kNextFrozen};
  const auto second = Only<ShardCopied>(both.shard().Apply(next));
  ASSERT_EQ(second.size(), 1);
  EXPECT_TRUE(second[0].more);
  const ShardOutputs outputs = both.shard().Apply(next);
  ASSERT_EQ(Only<ShardCopied>(outputs).size(), 1);
  EXPECT_FALSE(Only<ShardCopied>(outputs)[0].more);
  EXPECT_EQ(Only<ShardCutDone>(outputs).size(), 1);
  EXPECT_TRUE(both.shard().Apply(next).empty()) << "late, when all are copied";

  ShardRig alone({.tensors = {100}, .frozen = {0}});
  alone.Commit(1, {alone.Member(0)});
  alone.Seed(0, SomeValues(100, 1));
  EXPECT_EQ(Lines(alone.shard().Apply(ShardCut{5})),
            (std::vector<std::string>{"copied b0 v5", "cut v5"}));
  // A cut may be of any step, since servers that train may be heard of in any order.
  EXPECT_EQ(Lines(alone.shard().Apply(ShardCut{4})),
            (std::vector<std::string>{"copied b0 v4", "cut v4"}));
  EXPECT_TRUE(alone.shard().Apply(ShardCut{4}).empty());
}

TEST(Cuts, WhatBelongsToTheJobIsOfTheStepHoweverLateFrozenBlocksAreCopied) {
  ShardRig rig({.training = {.optimizer = {.options = {{"lr", 0.25}}}},
                .tensors = {100, 100},
                .frozen = {1}});
  rig.Commit(1, {rig.Member(0)});
  for (const uint32_t block : {0u, 1u}) rig.Seed(block, SomeValues(100, block));
  rig.shard().Apply(ShardCut{1});
  for (const uint64_t step : {0, 1}) rig.Push(0, 0, step);
  for (const uint64_t step : {2, 3}) {
    const ShardCommit commit = {
        .epoch = 1 + step,
        .members = {rig.Member(0)},
        .training = TrainingSettings{.optimizer = {.options = {{"lr", 0.5 * step}}}},
        .training_from = step};
    rig.shard().Apply(ShardPrepare{1 + step});
    rig.shard().Apply(commit);
    rig.Push(0, 0, step);
  }
  const auto done = Only<ShardCutDone>(
      rig.shard().Apply(ShardCut{.step = 1, .kind = ShardCut::Kind::kNextFrozen}));
  ASSERT_EQ(done.size(), 1);
  EXPECT_EQ(done[0].training.optimizer.options.at("lr"), 0.25);
}

TEST(Cuts, AnOrderForAStepThatABlockIsPastIsAnsweredAndLaterOnesAreCopied) {
  ShardRig rig({});
  rig.Commit(1, {rig.Member(0)});
  rig.Seed(0, SomeValues(100, 1));
  rig.Push(0, 0, 0);
  rig.Push(0, 0, 1);
  const auto late = Only<ShardCutDone>(rig.shard().Apply(ShardCut{1}));
  ASSERT_EQ(late.size(), 1);
  EXPECT_EQ(late[0].rest, nullptr);
  const auto next = Only<ShardCutDone>(rig.shard().Apply(ShardCut{2}));
  ASSERT_EQ(next.size(), 1);
  EXPECT_NE(next[0].rest, nullptr);
}

TEST(Cuts, TheLastOneBringsAllBlocksToItsStepWithoutMembersAndMayComeAgain) {
  ShardRig rig({.tensors = {100, 100}});
  rig.Commit(1, {rig.Member(0), rig.Member(1)});
  for (const uint32_t block : {0u, 1u}) rig.Seed(block, SomeValues(100, block));
  for (const uint32_t rank : {0u, 1u}) rig.Push(rank, 0, 0);
  rig.Push(0, 1, 0);  // the other one left before it pushed
  rig.shard().Apply(ShardPrepare{2});
  rig.Commit(2, {});
  const std::vector<float> before(rig.shard().block_weights(1).begin(),
                                  rig.shard().block_weights(1).end());
  const ShardOutputs outputs =
      rig.shard().Apply(ShardCut{.step = 1, .kind = ShardCut::Kind::kLast});
  EXPECT_EQ(Only<ShardCopied>(outputs).size(), 2);
  ASSERT_EQ(Only<ShardCutDone>(outputs).size(), 1);
  EXPECT_NE(Only<ShardCutDone>(outputs)[0].rest, nullptr);
  EXPECT_EQ(rig.shard().block_version(1), 1);
  EXPECT_TRUE(std::ranges::equal(rig.shard().block_weights(1), before));
  EXPECT_TRUE(
      rig.shard().Apply(ShardCut{.step = 1, .kind = ShardCut::Kind::kLast}).empty());
  const ShardOutputs again =
      rig.shard().Apply(ShardCut{.step = 1, .kind = ShardCut::Kind::kLastAgain});
  EXPECT_EQ(Only<ShardCopied>(again).size(), 2);
  EXPECT_EQ(Only<ShardCutDone>(again).size(), 1);
}

}  // namespace
}  // namespace syncline
