// The step rules of the modes, and shards that follow them.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/shard/shard_test_util.h"
#include "server/shard/sync_policy.h"

namespace syncline {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Not;

std::unique_ptr<const SyncPolicy> Ahead(uint64_t staleness) {
  return MakeSyncPolicy({.kind = SyncMode::Kind::kSsp, .staleness = staleness});
}

TEST(SyncPolicy, TakesStepsUpToTheLimitAndEachOnce) {
  const auto policy = Ahead(2);
  const auto ruling = [&](PushFacts facts) { return policy->Judge(facts); };
  EXPECT_EQ(ruling({.step = 4, .version = 5}), PushRuling::kCounted);
  for (const uint64_t step : {5, 6, 7}) {
    EXPECT_EQ(ruling({.step = step, .version = 5}), PushRuling::kTake);
    EXPECT_EQ(ruling({.step = step, .version = 5, .is_held = true}), PushRuling::kHeld);
  }
  EXPECT_EQ(ruling({.step = 8, .version = 5}), PushRuling::kRefuse);
  EXPECT_EQ(ruling({.step = 6, .version = 5, .first_step = 7}), PushRuling::kRefuse);
  EXPECT_EQ(ruling({.step = 5, .version = 5, .is_complete = true}), PushRuling::kRefuse);
  EXPECT_EQ(ruling({.step = 6, .version = 5, .is_complete = true}), PushRuling::kTake);
}

TEST(SyncPolicy, WithoutStalenessOnlyTheStepUnderWayIsTaken) {
  const auto policy = MakeSyncPolicy({});
  EXPECT_EQ(policy->Judge({.step = 5, .version = 5}), PushRuling::kTake);
  EXPECT_EQ(policy->Judge({.step = 6, .version = 5}), PushRuling::kRefuse);
  EXPECT_FALSE(policy->StepsNow({.expected = 3, .present = 2}));
  EXPECT_TRUE(policy->StepsNow({.expected = 3, .present = 3}));
}

RigOptions StaleRig(uint64_t staleness) {
  RigOptions options;
  options.training.mode = {.name = "ssp",
                           .values = {{"staleness", static_cast<double>(staleness)}}};
  return options;
}

class StaleShard : public ::testing::Test {
 protected:
  StaleShard() {
    rig_.Commit(1, {rig_.Member(0), rig_.Member(1)});
    rig_.Seed(0, SomeValues(100, 1));
  }
  std::vector<std::string> Push(uint32_t rank, uint64_t step) {
    return Lines(rig_.Push(rank, 0, step));
  }

  ShardRig rig_{StaleRig(2)};
};

TEST_F(StaleShard, HoldsStepsAheadAndMakesThemInOrderOnceAllAreThere) {
  for (const uint64_t step : {0, 1, 2}) {
    EXPECT_THAT(Push(0, step), ElementsAre("ack r0 b0 s" + std::to_string(step)));
  }
  EXPECT_THAT(Push(0, 3), ElementsAre("refuse r0 wrong step"));
  EXPECT_THAT(Push(0, 1), ElementsAre("ack r0 b0 s1")) << "a repetition";
  EXPECT_THAT(Push(1, 0), ElementsAre("ack r1 b0 s0", "applied b0 s0 by r0 r1",
                                      "publish r0 b0 v1", "publish r1 b0 v1"));
  EXPECT_THAT(Push(1, 1), Contains("applied b0 s1 by r0 r1"));
  EXPECT_EQ(rig_.shard().block_version(0), 2u);
}

TEST_F(StaleShard, GivesTheBitsOfLockstepWhateverTheOrderOfArrival) {
  ShardRig lockstep{RigOptions{}};
  lockstep.Commit(1, {lockstep.Member(0), lockstep.Member(1)});
  lockstep.Seed(0, SomeValues(100, 1));
  for (uint64_t step = 0; step < 3; ++step) {
    for (const uint32_t rank : {0u, 1u}) lockstep.Push(rank, 0, step);
  }
  for (const uint64_t step : {0, 1, 2}) Push(1, step);
  for (const uint64_t step : {0, 1, 2}) Push(0, step);
  EXPECT_EQ(rig_.Weights(0), lockstep.Weights(0));
}

TEST_F(StaleShard, WhatTheDeadGaveToStepsAheadIsDroppedAndTheOthersGoOn) {
  for (const uint64_t step : {0, 1, 2}) Push(0, step);
  Push(1, 0);
  Push(1, 1);
  const size_t held = rig_.shard().resident_bytes();
  EXPECT_THAT(Lines(rig_.Commit(2, {rig_.Member(1)})), ElementsAre("committed e2"));
  EXPECT_LT(rig_.shard().resident_bytes(), held);
  EXPECT_THAT(Push(1, 2), Contains("applied b0 s2 by r1"));
}

TEST_F(StaleShard, AJoinerIsPartOfStepsThatOthersHaveGivenAlready) {
  for (const uint64_t step : {0, 1, 2}) Push(0, step);
  Push(1, 0);
  EXPECT_THAT(Lines(rig_.shard().Apply(ShardPrepare{2})), ElementsAre("prepared e2 s1"));
  rig_.Commit(2, {rig_.Member(0), rig_.Member(1), rig_.Member(2, 1)});
  EXPECT_THAT(Push(1, 1), Not(Contains("applied b0 s1 by r0 r1")));
  EXPECT_THAT(Push(2, 1), Contains("applied b0 s1 by r0 r1 r2"));
}

TEST_F(StaleShard, NobodyOwesUntilSomebodyIsAtTheLimit) {
  const auto owed = [&] { return rig_.shard().Progress().members[1].owed; };
  for (const uint64_t step : {0, 1}) {
    Push(0, step);
    EXPECT_EQ(owed(), 0u) << "worker 0 may still compute";
  }
  Push(0, 2);
  EXPECT_EQ(owed(), 1u);
  Push(1, 0);
  EXPECT_EQ(owed(), 0u);
}

// Worker 0 has passed a barrier with two steps that worker 1 lacks, and waits for both.
TEST_F(StaleShard, WhoeverSettlesIsWaitedForBelowTheLimit) {
  const auto of = [&](uint32_t rank) { return rig_.shard().Progress().members[rank]; };
  Push(0, 0);
  Push(0, 1);
  EXPECT_EQ(of(1).owed, 0u);
  rig_.Pull(0, 0, 2);
  EXPECT_EQ(rig_.shard().Progress().waited_for, 1u);
  EXPECT_EQ(of(0).owed, 0u);
  EXPECT_EQ(of(0).waits, 1u);
  EXPECT_EQ(of(1).owed, 1u);
  Push(1, 0);
  EXPECT_EQ(of(1).owed, 1u) << "one step more";
  EXPECT_THAT(Push(1, 1), Contains("publish r0 b0 v2"));
  EXPECT_EQ(of(1).owed, 0u);
}

TEST_F(StaleShard, AStepWithoutAChangeGoesOutAsAWholeView) {
  Push(0, 0);
  ShardMessage skip = {rig_.Header(MessageKind::kPush, 1, 0, 0), {}};
  skip.header.samples = 0;
  rig_.shard().Apply(skip);
  for (const uint32_t rank : {0u, 1u}) {
    skip.header = rig_.Header(MessageKind::kPush, rank, 0, 1);
    skip.header.samples = 0;
    const auto lines = Lines(rig_.shard().Apply(skip));
    EXPECT_THAT(lines, Not(Contains("unchanged r0 b0 v2")));
    if (rank == 0) continue;
    EXPECT_THAT(lines, Contains("publish r0 b0 v2"));
  }
}

// ---- Another staleness in the middle of a job ----

class PacedShard : public ::testing::Test {
 protected:
  // Sets the staleness from this epoch on.
  void SetStaleness(uint64_t epoch, uint64_t staleness) {
    ShardCommit commit{.epoch = epoch, .members = {rig_->Member(0), rig_->Member(1)}};
    commit.training = StaleRig(staleness).training;
    commit.training_from = rig_->shard().block_version(0);
    rig_->shard().Apply(commit);
  }
  void Begin(uint64_t staleness) {
    rig_.emplace(StaleRig(staleness));
    rig_->Commit(1, {rig_->Member(0), rig_->Member(1)});
    rig_->Seed(0, SomeValues(100, 1));
  }
  std::vector<std::string> Push(uint32_t rank, uint64_t step) {
    return Lines(rig_->Push(rank, 0, step));
  }
  uint64_t owed() { return rig_->shard().Progress().members[1].owed; }

  std::optional<ShardRig> rig_;
};

TEST_F(PacedShard, ALargerStalenessHoldsFromItsEpochOn) {
  Begin(0);
  Push(0, 0);
  EXPECT_THAT(Push(0, 1), ElementsAre("refuse r0 wrong step"));
  EXPECT_EQ(owed(), 1u);
  SetStaleness(2, 2);
  EXPECT_EQ(owed(), 0u) << "nobody is at the bound";
  EXPECT_THAT(Push(0, 1), ElementsAre("ack r0 b0 s1"));
  EXPECT_THAT(Push(0, 2), ElementsAre("ack r0 b0 s2"));
  EXPECT_EQ(owed(), 1u);
  EXPECT_THAT(Push(0, 3), ElementsAre("refuse r0 wrong step"));
  EXPECT_THAT(Push(1, 0), Contains("applied b0 s0 by r0 r1"));
}

// A member that has not heard of the change may still push ahead.
TEST_F(PacedShard, WhatIsAheadIsTakenAndMadeAlthoughTheStalenessIsSmallerByNow) {
  Begin(2);
  Push(0, 0);
  SetStaleness(2, 0);
  EXPECT_EQ(owed(), 1u) << "worker 0 waits for the step";
  EXPECT_THAT(Push(0, 1), ElementsAre("ack r0 b0 s1"));
  EXPECT_THAT(Push(0, 2), ElementsAre("ack r0 b0 s2"));
  EXPECT_THAT(Push(0, 3), ElementsAre("refuse r0 wrong step"));
  for (const uint64_t step : {0, 1, 2}) Push(1, step);
  EXPECT_EQ(rig_->shard().block_version(0), 3u);
  ShardRig lockstep{RigOptions{}};
  lockstep.Commit(1, {lockstep.Member(0), lockstep.Member(1)});
  lockstep.Seed(0, SomeValues(100, 1));
  for (uint64_t step = 0; step < 3; ++step) {
    for (const uint32_t rank : {0u, 1u}) lockstep.Push(rank, 0, step);
  }
  EXPECT_EQ(rig_->Weights(0), lockstep.Weights(0));
}

// A worker that has run ahead may lack the version before.
TEST_F(PacedShard, AStepWithoutAChangeGoesOutWholeSinceSomebodyRanAhead) {
  const auto skip = [&](uint32_t rank, uint64_t step) {
    ShardMessage message = {rig_->Header(MessageKind::kPush, rank, 0, step), {}};
    message.header.samples = 0;
    return Lines(rig_->shard().Apply(message));
  };
  Begin(0);
  skip(0, 0);
  EXPECT_THAT(skip(1, 0), Contains("unchanged r0 b0 v1"));
  SetStaleness(2, 1);
  SetStaleness(3, 0);
  skip(0, 1);
  EXPECT_THAT(skip(1, 1), Contains("publish r0 b0 v2"));
}

// ---- asp ----

class AsyncShard : public ::testing::Test {
 protected:
  explicit AsyncShard(OptionValues options = {}) : rig_(Options(std::move(options))) {
    rig_.Commit(1, {rig_.Member(0), rig_.Member(1)});
    rig_.Seed(0, start_);
    for (const uint32_t rank : {0u, 1u}) rig_.Pull(rank, 0, 0);
  }
  static RigOptions Options(OptionValues options) {
    RigOptions rig;
    rig.codec = "fp32";
    rig.training.optimizer = {.name = "sgd", .options = {{"lr", 0.5}}};
    rig.training.mode = {.name = "asp", .values = std::move(options)};
    return rig;
  }
  std::vector<std::string> Push(uint32_t rank, uint64_t step) {
    return Lines(rig_.Push(rank, 0, step));
  }
  // weights - rate * gradient.
  void Descend(std::vector<float>& weights, uint32_t rank, uint64_t step, float rate) {
    const std::vector<float> gradient = rig_.PushOf(rank, 0, step).gradient;
    for (size_t i = 0; i < weights.size(); ++i) weights[i] -= rate * gradient[i];
  }

  const std::vector<float> start_ = SomeValues(100, 1);
  ShardRig rig_;
};

TEST_F(AsyncShard, MakesAStepOfEachContributionAndTellsItsSenderOnly) {
  EXPECT_THAT(Push(1, 0),
              ElementsAre("ack r1 b0 s0", "applied b0 s0 by r1", "publish r1 b0 v1"));
  EXPECT_THAT(Push(1, 1), Contains("publish r1 b0 v2"));
  EXPECT_THAT(Push(0, 0),
              ElementsAre("ack r0 b0 s0", "applied b0 s2 by r0", "publish r0 b0 v3"));
  std::vector<float> expected = start_;
  Descend(expected, 1, 0, 0.5f);
  Descend(expected, 1, 1, 0.5f);
  Descend(expected, 0, 0, 0.5f);
  EXPECT_EQ(rig_.Weights(0), expected);
}

TEST_F(AsyncShard, CountsEachContributionOnceAndInOrder) {
  Push(0, 0);
  const std::vector<float> weights = rig_.Weights(0);
  EXPECT_THAT(Push(0, 0), ElementsAre("ack r0 b0 s0", "publish r0 b0 v1"));
  EXPECT_THAT(Push(0, 2), ElementsAre("refuse r0 wrong step"));
  EXPECT_EQ(rig_.Weights(0), weights);
}

TEST_F(AsyncShard, SaysHowOldTheWeightsWereThatAContributionCameFrom) {
  for (const uint64_t step : {0, 1, 2}) Push(0, step);
  const ShardOutputs outputs = rig_.Push(1, 0, 0);
  const auto* applied = std::get_if<ShardApplied>(&outputs.at(1));
  ASSERT_NE(applied, nullptr);
  ASSERT_TRUE(applied->arrival.has_value());
  EXPECT_EQ(applied->arrival->step, 0u);
  EXPECT_EQ(applied->arrival->age, 3u);
}

TEST_F(AsyncShard, NobodyOwesAnything) {
  Push(0, 0);
  rig_.Pull(0, 0, 2);
  for (const auto& member : rig_.shard().Progress().members) EXPECT_EQ(member.owed, 0u);
}

TEST_F(AsyncShard, AJoinerBeginsWhereTheFurthestIsAndNobodyWaitsForIt) {
  for (const uint64_t step : {0, 1, 2}) Push(0, step);
  EXPECT_THAT(Lines(rig_.shard().Apply(ShardPrepare{2})), ElementsAre("prepared e2 s3"));
  EXPECT_THAT(Push(1, 0), Contains("applied b0 s3 by r1")) << "while the epoch changes";
  rig_.Commit(2, {rig_.Member(0), rig_.Member(1), rig_.Member(2, 3)});
  EXPECT_THAT(Push(0, 3), Contains("applied b0 s4 by r0"));
  EXPECT_THAT(Push(2, 3), Contains("applied b0 s5 by r2"));
  EXPECT_THAT(Push(2, 2), ElementsAre("refuse r2 wrong step"));
}

// Another shard may have reported a later step to the coordinator than this one did.
TEST_F(AsyncShard, WhatTheNewSettingsMayBeForWaitsForThem) {
  Push(0, 0);
  rig_.shard().Apply(ShardPrepare{2});
  const std::vector<float> before = rig_.Weights(0);
  EXPECT_THAT(Push(0, 1), ElementsAre("noted r0 b0 v1"));
  EXPECT_THAT(Push(0, 1), ElementsAre("noted r0 b0 v1")) << "again";
  EXPECT_THAT(Lines(rig_.Pull(0, 0, 1)), ElementsAre("noted r0 b0 v1"))
      << "a view now would make it look younger";
  EXPECT_EQ(rig_.Weights(0), before);
  EXPECT_THAT(Push(1, 0), Contains("applied b0 s1 by r1"));
  EXPECT_THAT(Lines(rig_.Commit(2, {rig_.Member(0), rig_.Member(1)})),
              AllOf(Contains("applied b0 s2 by r0"), Contains("ack r0 b0 s1")));
}

TEST_F(AsyncShard, WhatWasPostponedOfOneWhoIsDroppedDoesNotCount) {
  Push(0, 0);
  rig_.shard().Apply(ShardPrepare{2});
  Push(0, 1);
  EXPECT_THAT(Lines(rig_.Commit(2, {rig_.Member(1)})), ElementsAre("committed e2"));
  EXPECT_THAT(Push(1, 0), Contains("applied b0 s1 by r1"));
}

class WeighedShard : public AsyncShard {
 protected:
  WeighedShard() : AsyncShard({{"age_power", 1}}) {}
};

TEST_F(WeighedShard, OlderContributionsHaveASmallerRate) {
  Push(0, 0);
  Push(1, 0);
  std::vector<float> expected = start_;
  Descend(expected, 0, 0, 0.5f);
  Descend(expected, 1, 0, 0.25f);
  EXPECT_EQ(rig_.Weights(0), expected);
}

class GatedShard : public AsyncShard {
 protected:
  GatedShard() : AsyncShard({{"age_limit", 2}}) {}
};

TEST_F(GatedShard, ContributionsOfTheLimitAndOlderMoveNothing) {
  Push(0, 0);
  Push(0, 1);
  std::vector<float> expected = start_;
  Descend(expected, 0, 0, 0.5f);
  Descend(expected, 0, 1, 0.5f);
  ASSERT_EQ(rig_.Weights(0), expected);
  EXPECT_THAT(Push(1, 0), Contains("applied b0 s2 by r1")) << "it is counted";
  EXPECT_EQ(rig_.Weights(0), expected);
}

// The optimizer remembers nothing of a contribution that is over the age limit.
TEST(AgeWeights, WhatIsGatedMovesNothingLater) {
  RigOptions options = {.codec = "fp32", .tensors = {100}};
  options.training.optimizer = {.name = "sgd", .options = {{"lr", 1}, {"momentum", 0.9}}};
  options.training.mode = {.name = "asp", .values = {{"age_limit", 2}}};
  ShardRig rig(options);
  rig.Commit(1, {rig.Member(0), rig.Member(1)});
  const std::vector<float> start = SomeValues(100, 1);
  rig.Seed(0, start);
  for (const uint32_t rank : {0u, 1u}) rig.Pull(rank, 0, 0);
  const auto push = [&](uint32_t rank, uint64_t step, float value) {
    rig.shard().Apply(
        rig.PushMessage(rank, 0, step, {std::vector<float>(100, value), 1}));
  };
  push(0, 0, 0);
  push(0, 1, 0);
  push(1, 0, 100);  // two versions old
  EXPECT_EQ(rig.Weights(0), start);
  push(1, 1, 0);
  EXPECT_EQ(rig.Weights(0), start);
}

struct AgeWeight {
  OptionValues mode = {};
  OptimizerSettings optimizer = {};
  OptionValues gradient = {};
};

// At age one, each of these weighs one half, so a push of half the gradient gives exactly
// the same result.
TEST(AgeWeights,
     AnOldContributionIsAFreshOneOfASmallerGradientWhereGradientsAreRemembered) {
  const OptimizerSettings optimizers[] = {
      {.name = "sgd", .options = {{"lr", 0.1}, {"momentum", 0.9}}},
      {.name = "sgd",
       .options =
           {{"lr", 0.1}, {"momentum", 0.9}, {"nesterov", 1}, {"weight_decay", 0.1}}},
      {.name = "sgd",
       .options =
           {{"lr", 0.1}, {"momentum", 0.9}, {"nesterov", 1}, {"momentum_every", 3}}},
      {.name = "adam", .options = {{"lr", 0.1}}},
      {.name = "adamw", .options = {{"lr", 0.1}, {"weight_decay", 0.1}}},
      {.name = "lion", .options = {{"lr", 0.1}}}};
  const OptionValues weights[] = {
      {{"age_power", 1}}, {{"age_decay", 0.5}}, {{"age_limit", 2}}};
  std::vector<AgeWeight> cases;
  for (const OptimizerSettings& optimizer : optimizers) {
    for (const OptionValues& mode : weights) cases.push_back({mode, optimizer});
  }
  cases.push_back({weights[0], optimizers[3], {{"clip_value", 0.25}}});
  const auto make = [](const AgeWeight& one, const OptionValues& mode) {
    RigOptions options = {.codec = "fp32", .tensors = {100}};
    options.training.optimizer = one.optimizer;
    options.training.gradient = one.gradient;
    options.training.mode = {.name = "asp", .values = mode};
    auto rig = std::make_unique<ShardRig>(options);
    rig->Commit(1, {rig->Member(0), rig->Member(1)});
    rig->Seed(0, SomeValues(100, 1));
    for (const uint32_t rank : {0u, 1u}) rig->Pull(rank, 0, 0);
    return rig;
  };
  for (const AgeWeight& one : cases) {
    const auto weighed = make(one, one.mode);
    const auto plain = make(one, {});
    for (uint64_t step = 0; step < 4; ++step) {
      // The workers take turns, so all pushes but the first are one version old.
      for (const uint32_t rank : {0u, 1u}) {
        Reference::Push push = weighed->PushOf(rank, 0, step);
        weighed->shard().Apply(weighed->PushMessage(rank, 0, step, push));
        const auto clip = one.gradient.find("clip_value");
        for (float& value : push.gradient) {
          if (clip != one.gradient.end()) {
            const auto most = static_cast<float>(clip->second);
            value = std::clamp(value, -most, most);
          }
          if (step > 0 || rank > 0) value /= 2;
        }
        plain->shard().Apply(plain->PushMessage(rank, 0, step, push));
      }
    }
    EXPECT_EQ(weighed->Weights(0), plain->Weights(0))
        << one.optimizer.name << " " << FormatOptionList(one.mode);
    EXPECT_EQ(weighed->shard().Save()->blocks.at(0).state,
              plain->shard().Save()->blocks.at(0).state)
        << one.optimizer.name << " " << FormatOptionList(one.mode);
  }
}

class CompensatingShard : public AsyncShard {
 protected:
  CompensatingShard() : AsyncShard({{"compensation", 2}}) {}
};

TEST_F(CompensatingShard, MovesAnOldGradientToTheWeightsOfToday) {
  Push(0, 0);
  const std::vector<float> before = rig_.Weights(0);
  Push(1, 0);
  const std::vector<float> gradient = rig_.PushOf(1, 0, 0).gradient;
  for (size_t i = 0; i < before.size(); ++i) {
    const float g = gradient[i];
    const float moved = g + 2 * g * g * (before[i] - start_[i]);
    EXPECT_NEAR(rig_.Weights(0)[i], before[i] - 0.5f * moved, 1e-6) << i;
  }
}

}  // namespace
}  // namespace syncline
