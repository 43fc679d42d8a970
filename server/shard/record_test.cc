// A shard and its records: replayed, they are the shard.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/shard/record.h"
#include "server/shard/shard_test_util.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kSeededUpdates = 40;
constexpr float kNotFinite = std::numeric_limits<float>::infinity();

struct RecordCase {
  std::string name = {};
  TrainingSettings training = {};
  std::string push = "bf16";
  std::string publish = "bf16";
  std::vector<uint64_t> tensors = {300, 5000, 1};
  uint32_t seeded_arrays = 0;  // of the optimizer's state that the job begins with
};
void PrintTo(const RecordCase& one, std::ostream* out) { *out << one.name; }

RigOptions OptionsFor(const RecordCase& one, Records records) {
  return {.codec = "bf16",
          .publish = one.publish,
          .push = one.push,
          .training = one.training,
          .tensors = one.tensors,
          .seed = 5,
          .records = records};
}

// A job whose workers come, go, skip and give what is not finite, and the records of it.
class RecordedJob {
 public:
  explicit RecordedJob(const RecordCase& one)
      : rig_(OptionsFor(one, Records::kKept)),
        blocks_(CutIntoBlocks(one.tensors).size()) {
    Take(rig_.Commit(1, {rig_.Member(0), rig_.Member(1)}));
    ForEachBlock([&](uint32_t block) {
      SeedState(block, one.seeded_arrays);
      ShardMessage values =
          rig_.SeedMessage(0, block, SomeValues(rig_.range(block).elements, block));
      values.header.samples = one.seeded_arrays > 0 ? kSeededUpdates : 0;
      Take(rig_.shard().Apply(values));
    });
  }

  void SeedState(uint32_t block, uint32_t arrays) {
    for (uint32_t array = 0; array < arrays; ++array) {
      std::vector<float> values = SomeValues(rig_.range(block).elements, 70 + array);
      for (float& value : values) value *= value;  // a variance is not negative
      ShardMessage message = rig_.SeedMessage(0, block, std::move(values));
      message.header.kind = static_cast<uint16_t>(MessageKind::kSeedState);
      message.header.samples = array;
      message.header.shard = kSeededUpdates;
      Take(rig_.shard().Apply(message));
    }
  }
  ShardRig& rig() { return rig_; }
  const std::vector<std::shared_ptr<const ShardRecord>>& records() const {
    return records_;
  }

  // The later rank first: order of arrival must not matter.
  void Step(uint64_t step, float factor = 1) {
    for (const uint32_t rank : {1u, 0u}) {
      ForEachBlock([&](uint32_t block) { Push(rank, block, step, factor); });
    }
    Decide(step);
  }
  void Push(uint32_t rank, uint32_t block, uint64_t step, float factor = 1) {
    Reference::Push push = rig_.PushOf(rank, block, step);
    for (float& value : push.gradient) value *= factor;
    const BlockLabel label = {rig_.range(block), step, rig_.shard().epoch()};
    const Transfer& transfer = rig_.transfers().push;
    const bool is_dense = transfer.compresses() && !std::isfinite(factor);
    const Buffer payload =
        Gather(EncodeBlock(is_dense ? *transfer.dense : *transfer.codec, label,
                           push.gradient, Checksum::kHeaderOnly, pool_));
    ShardMessage message = {rig_.Header(MessageKind::kPush, rank, block, step),
                            Slice::Of(payload)};
    message.header.samples = push.samples;
    Take(rig_.shard().Apply(message));
  }
  void Skip(uint32_t rank, uint32_t block, uint64_t step) {
    ShardMessage message = {rig_.Header(MessageKind::kPush, rank, block, step), {}};
    message.header.samples = 0;
    Take(rig_.shard().Apply(message));
  }
  void Part(uint32_t rank, uint32_t block, uint64_t step) {
    Take(rig_.shard().Apply(
        rig_.PartingMessage(rank, block, step, rig_.PushOf(rank, block, 900 + step))));
  }
  void Commit(uint64_t epoch, const std::vector<ShardMember>& members,
              std::optional<TrainingSettings> training = std::nullopt,
              uint64_t from = 0) {
    Take(rig_.shard().Apply(ShardPrepare{epoch}));
    Take(rig_.shard().Apply(ShardCommit{epoch, members, std::move(training), from}));
  }
  void Decide(uint64_t step) {
    if (figures_.empty()) return;
    std::vector<double> sums(figures_.begin()->second.size());
    for (const auto& [block, parts] : figures_) {
      for (size_t i = 0; i < sums.size(); ++i) sums[i] += parts[i];
    }
    figures_.clear();
    loss_scale_ = std::isfinite(sums[0]) ? loss_scale_ * 2 : loss_scale_ / 4;
    Take(rig_.shard().Apply(ShardDecision{.step = step,
                                          .gradient_scale = 0.25f,
                                          .verdict = std::isfinite(sums[0])
                                                         ? ShardDecision::Verdict::kApply
                                                         : ShardDecision::Verdict::kSkip,
                                          .loss_scale = loss_scale_,
                                          .figures = {sums.begin() + 1, sums.end()}}));
  }
  template <typename Visit>
  void ForEachBlock(const Visit& visit) const {
    for (uint32_t block = 0; block < blocks_; ++block) visit(block);
  }

 private:
  void Take(const ShardOutputs& outputs) {
    for (const ShardOutput& output : outputs) {
      if (const auto* kept = std::get_if<ShardRecorded>(&output)) {
        records_.push_back(kept->record);
      }
      if (const auto* figures = std::get_if<ShardFigures>(&output)) {
        figures_[figures->block] = figures->figures;
      }
      if (const auto* reply = std::get_if<ShardReply>(&output)) {
        ASSERT_NE(reply->header.kind, static_cast<uint16_t>(MessageKind::kRefuse))
            << RefuseCodeName(static_cast<RefuseCode>(reply->header.code));
      }
    }
  }

  ShardRig rig_;
  BufferPool pool_{1 << 20};
  const size_t blocks_;
  std::map<uint32_t, std::vector<double>> figures_;
  float loss_scale_ = 1024;
  std::vector<std::shared_ptr<const ShardRecord>> records_;
};

void ExpectReplayed(RecordedJob& job, const RecordCase& one) {
  ShardRig again(OptionsFor(one, Records::kNone));
  for (const auto& record : job.records()) {
    const auto outputs = again.shard().Replay(*record);
    ASSERT_TRUE(outputs.ok()) << outputs.status();
    const auto* step = std::get_if<StepRecord>(&record->what);
    if (step == nullptr || again.shard().block_version(step->block) == step->step) {
      continue;  // it waits for the rest of its tensor
    }
    EXPECT_EQ(again.shard().block_digest(step->block), step->digest)
        << "block " << step->block << " step " << step->step;
  }
  const auto expected = job.rig().shard().Save();
  const auto got = again.shard().Save();
  ASSERT_TRUE(expected.ok() && got.ok()) << expected.status() << got.status();
  EXPECT_EQ(got->blocks, expected->blocks);
  EXPECT_EQ(got->factors, expected->factors);
  EXPECT_EQ(got->job_memory, expected->job_memory);
  EXPECT_EQ(got->loss_scale, expected->loss_scale);
  EXPECT_GT(job.rig().shard().block_version(0), 0u);
}

class Recorded : public ::testing::TestWithParam<RecordCase> {};

TEST_P(Recorded, AShardReplayedIsThatShard) {
  const RecordCase& one = GetParam();
  RecordedJob job(one);
  for (uint64_t step = 0; step < 6; ++step) job.Step(step);
  ExpectReplayed(job, one);
}

// A cut was made while a seeder was at it, that died; the next one brought no state.
TEST(Records, OfABlockThatBeganWithoutStateClearWhatItHad) {
  const RecordCase one = {.training = {.optimizer = {.name = "adamw"}}, .tensors = {300}};
  const auto seed = [](ShardRig& rig, MessageKind kind, uint32_t updates) {
    ShardMessage message = rig.SeedMessage(0, 0, SomeValues(300, 1));
    message.header.kind = static_cast<uint16_t>(kind);
    message.header.shard = updates;
    return rig.shard().Apply(message);
  };
  ShardRig rig(OptionsFor(one, Records::kKept)), again(OptionsFor(one, Records::kNone));
  rig.Commit(1, {rig.Member(0)});
  seed(rig, MessageKind::kSeedState, 9);
  ASSERT_TRUE(again.shard().Load(*rig.shard().Save()).ok());
  for (const ShardOutput& output : seed(rig, MessageKind::kSeed, 0)) {
    const auto* kept = std::get_if<ShardRecorded>(&output);
    if (kept == nullptr) continue;
    EXPECT_EQ(std::get<SeedRecord>(kept->record->what).updates, 0u);
    ASSERT_TRUE(again.shard().Replay(*kept->record).ok());
  }
  EXPECT_EQ(again.shard().Save()->blocks, rig.shard().Save()->blocks);
  EXPECT_TRUE(again.shard().Save()->blocks.at(0).seeded);
}

std::vector<RecordCase> AllOptimizersAndCodecs() {
  std::vector<RecordCase> cases;
  for (const std::string_view name : OptimizerNames()) {
    RecordCase one = {.name = std::string(name)};
    one.training.optimizer = {.name = std::string(name), .options = {{"lr", 0.01}}};
    cases.push_back(one);
  }
  for (const char* state : {"bf16", "int8"}) {
    RecordCase one = {.name = std::string("adamw_") + state};
    one.training.optimizer = {.name = "adamw", .options = {{"lr", 0.01}}, .state = state};
    cases.push_back(one);
    one.name += "_begun";
    one.seeded_arrays = 2;
    cases.push_back(one);
  }
  const char* const codecs[] = {"fp32",
                                "bf16",
                                "signsgd:min_elements=100",
                                "onebit:min_elements=0,vectors=1",
                                "int8:min_elements=0,vectors=1,dense_steps=3",
                                "int4-stochastic:min_elements=0,vectors=1,rotate=1",
                                "topk:min_elements=0,vectors=1,ratio=0.05"};
  for (const char* codec : codecs) {
    RecordCase one = {.name = std::string(codec).substr(0, 4), .push = codec};
    one.training.optimizer = {.name = "adamw", .options = {{"lr", 0.01}}};
    // What is for gradients only does not travel back.
    if (one.name != "sign" && one.name != "int4") one.publish = codec;
    cases.push_back(one);
  }
  RecordCase whole = {.name = "lamb_of_two_blocks", .tensors = {kBlockElements + 3}};
  whole.training.optimizer = {.name = "lamb", .options = {{"lr", 0.01}}};
  cases.push_back(whole);
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Families, Recorded,
                         ::testing::ValuesIn(AllOptimizersAndCodecs()));

TrainingSettings Momentum() {
  return {.optimizer = {.name = "sgd", .options = {{"lr", 0.1}, {"momentum", 0.9}}}};
}

// Everything that happens to the members of a job in mode bsp.
void LiveThroughALot(RecordedJob& job, const TrainingSettings& settings) {
  job.Step(0);
  job.Step(1, kNotFinite);
  job.ForEachBlock([&](uint32_t block) {  // 0 has no gradient
    job.Skip(0, block, 2);
    job.Push(1, block, 2);
  });
  job.Decide(2);
  job.ForEachBlock([&](uint32_t block) {  // nobody has
    job.Skip(1, block, 3);
    job.Skip(0, block, 3);
  });
  job.Decide(3);
  // 1 parts and is gone, 2 comes; the rate is another one from here on.
  job.ForEachBlock([&](uint32_t block) { job.Part(1, block, 4); });
  TrainingSettings slower = settings;
  slower.optimizer.options["lr"] = 0.01;
  job.Commit(2, {ShardRig::Member(0), ShardRig::Member(2, 5)}, slower, 5);
  job.ForEachBlock([&](uint32_t block) { job.Push(0, block, 4); });
  job.Decide(4);
  job.Commit(3, {ShardRig::Member(0), ShardRig::Member(1, 5)});
  for (uint64_t step = 5; step < 9; ++step) job.Step(step);
}

struct LifeCase {
  std::string name = {};
  uint32_t accumulate_steps = 1;
  Aggregation aggregation = Aggregation::kRankOrder;
  std::string push = "topk:min_elements=0,vectors=1,ratio=0.05";
};
void PrintTo(const LifeCase& one, std::ostream* out) { *out << one.name; }

class RecordedLife : public ::testing::TestWithParam<LifeCase> {};

TEST_P(RecordedLife, MembersComeAndGoAndStepsAreSkipped) {
  RecordCase one = {.push = GetParam().push,
                    .publish = "onebit:min_elements=0,vectors=1"};
  one.training = Momentum();
  one.training.accumulate_steps = GetParam().accumulate_steps;
  one.training.aggregation = GetParam().aggregation;
  one.training.gradient["clip_global_norm"] = 1;
  one.training.loss_scaling = {.name = "torch", .values = {{"init_scale", 1024}}};
  RecordedJob job(one);
  LiveThroughALot(job, one.training);
  ExpectReplayed(job, one);
}

INSTANTIATE_TEST_SUITE_P(
    Settings, RecordedLife,
    ::testing::Values(LifeCase{"contributions"}, LifeCase{"sums", 1, {}, "fp32"},
                      LifeCase{"accumulated", 3},
                      LifeCase{"accumulated_sums", 3, {}, "fp32"},
                      LifeCase{"on_arrival", 1, Aggregation::kArrival},
                      LifeCase{"accumulated_on_arrival", 3, Aggregation::kArrival}));

TEST(RecordedModes, StepsAheadAreRecordedWhenTheyAreMade) {
  RecordCase one = {.training = Momentum()};
  one.training.mode = {.name = "ssp", .values = {{"staleness", 3}}};
  RecordedJob job(one);
  for (uint64_t step = 0; step < 4; ++step) {
    job.ForEachBlock([&](uint32_t block) { job.Push(0, block, step); });
  }
  EXPECT_EQ(job.records().size(), 3u) << "seeds";
  job.Commit(2, {ShardRig::Member(0), ShardRig::Member(1)});  // frames of another epoch
  for (uint64_t step = 0; step < 4; ++step) {
    job.ForEachBlock([&](uint32_t block) { job.Push(1, block, step); });
  }
  ExpectReplayed(job, one);
}

TEST(RecordedModes, ContributionsOfTheirOwnAreReplayedWithTheirAge) {
  for (const double compensation : {0.0, 0.04}) {
    RecordCase one = {.training = Momentum()};
    one.training.mode = {.name = "asp",
                         .values = {{"age_power", 1}, {"compensation", compensation}}};
    RecordedJob job(one);
    for (uint64_t step = 0; step < 4; ++step) {
      job.ForEachBlock([&](uint32_t block) {
        job.Push(0, block, 2 * step);
        job.Push(0, block, 2 * step + 1);
        step == 2 ? job.Skip(1, block, step) : job.Push(1, block, step);
      });
    }
    ExpectReplayed(job, one);
  }
}

TEST(Records, AreNotMadeUnlessTheyAreAskedFor) {
  ShardRig rig(OptionsFor({.name = "none"}, Records::kNone));
  rig.Commit(1, {rig.Member(0)});
  EXPECT_THAT(Lines(rig.Seed(0, SomeValues(300, 1))),
              ::testing::ElementsAre("ack r0 b0 s0"));
  EXPECT_THAT(Lines(rig.Push(0, 0, 0)), ::testing::Not(::testing::Contains("recorded")));
}

TEST(Records, HoldTheSmallerOfContributionsAndTheirSum) {
  const auto bytes_of = [](const char* push) {
    RecordCase one = {.training = Momentum(), .push = push, .tensors = {100'000}};
    RecordedJob job(one);
    job.Step(0);
    return std::get<StepRecord>(job.records().back()->what).payload.size;
  };
  EXPECT_EQ(bytes_of("fp32"), 400'000u);
  EXPECT_LT(bytes_of("onebit:min_elements=0,vectors=1"), 2 * 15'000u);
}

class WrongRecords : public ::testing::Test {
 protected:
  WrongRecords() : job_(one_) {
    job_.Step(0);
    job_.Step(1);
    for (const auto& record : job_.records()) {
      if (std::holds_alternative<SeedRecord>(record->what)) {
        EXPECT_TRUE(again_.shard().Replay(*record).ok());
      } else if (std::get<StepRecord>(record->what).block == 0) {
        steps_.push_back(std::get<StepRecord>(record->what));
      }
    }
  }
  absl::Status Replay(const StepRecord& record) {
    return again_.shard().Replay(ShardRecord{1, record}).status();
  }

  const RecordCase one_ = {.training = Momentum(),
                           .push = "topk:min_elements=0,vectors=1,ratio=0.05"};
  RecordedJob job_;
  ShardRig again_{OptionsFor(one_, Records::kNone)};
  std::vector<StepRecord> steps_;  // of block 0
};

TEST_F(WrongRecords, AreRefusedOutOfOrder) {
  EXPECT_THAT(Replay(steps_[1]).ToString(),
              HasSubstr("is of step 1, and the block is at 0"));
  EXPECT_TRUE(Replay(steps_[0]).ok());
  EXPECT_EQ(Replay(steps_[0]).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(WrongRecords, AreRefusedAndChangeNothing) {
  StepRecord other_block = steps_[0];
  other_block.block = 99;
  StepRecord no_payload = steps_[0];
  no_payload.payload = {};
  StepRecord no_worker = steps_[0];
  no_worker.parts[0].from.rank = 4'000'000'000;
  StepRecord other_mode = steps_[0];
  other_mode.arrival = ShardApplied::Arrival{};
  StepRecord short_sum = steps_[0];
  short_sum.holds = StepRecord::Payload::kGradient;
  StepRecord no_accumulator = steps_[0];
  no_accumulator.holds = StepRecord::Payload::kSum;
  for (const StepRecord& wrong :
       {other_block, no_payload, no_worker, other_mode, short_sum, no_accumulator}) {
    EXPECT_FALSE(Replay(wrong).ok());
  }
  for (const StepRecord& right : steps_) EXPECT_TRUE(Replay(right).ok());
  EXPECT_EQ(again_.shard().block_digest(0), job_.rig().shard().block_digest(0));
}

TEST_F(WrongRecords, AreRefusedByAShardThatHasMembers) {
  again_.Commit(2, {again_.Member(0)});
  EXPECT_THAT(Replay(steps_[0]).ToString(), HasSubstr("members"));
}

}  // namespace
}  // namespace syncline
