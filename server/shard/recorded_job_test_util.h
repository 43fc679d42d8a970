// A job that keeps records, and events that may happen to it.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "server/shard/record.h"
#include "server/shard/shard_test_util.h"

namespace syncline {

inline constexpr uint32_t kSeededUpdates = 40;
inline constexpr float kNotFinite = std::numeric_limits<float>::infinity();

struct RecordCase {
  std::string name = {};
  TrainingSettings training = {};
  std::string push = "bf16";
  std::string publish = "bf16";
  std::vector<uint64_t> tensors = {300, 5000, 1};
  uint32_t seeded_arrays = 0;  // arrays of optimizer state that the job begins with
};
inline void PrintTo(const RecordCase& one, std::ostream* out) { *out << one.name; }

inline RigOptions OptionsFor(const RecordCase& one, Records records) {
  return {.codec = "bf16",
          .publish = one.publish,
          .push = one.push,
          .training = one.training,
          .tensors = one.tensors,
          .seed = 5,
          .records = records};
}

// A job whose workers come, go, skip and push values that are not finite, with its
// records.
class RecordedJob {
 public:
  // `backs_up_at`: the number of inputs after which a new backup begins; 0: none. If
  // records are awaited, it is a snapshot instead.
  explicit RecordedJob(const RecordCase& one, int backs_up_at = 0,
                       Records records = Records::kKept)
      : rig_(OptionsFor(one, records)),
        blocks_(CutIntoBlocks(one.tensors).size()),
        backs_up_at_(backs_up_at),
        backs_up_(records == Records::kAwaited) {
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

  // The later rank pushes first: order of arrival must not matter.
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
  // Begins a new backup. From now on, records_ are the records for it, with the states
  // among them; they count as durable at once.
  void BackUp() {
    backs_up_ = true;
    records_.clear();
    Take(rig_.shard().Apply(ShardBackUp{}));
  }
  // Begins a snapshot: records continue, with the states among them.
  void Snapshot() {
    snapshot_at_ = records_.size();
    Take(rig_.shard().Apply(ShardBackUp{ShardBackUp::Kind::kSnapshot}));
  }
  // Number of records before the snapshot.
  size_t snapshot_at() const { return snapshot_at_; }
  // Returns whether the backup, or the snapshot, has the whole state.
  bool is_backed_up() const { return is_backed_up_; }

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
      if (const auto* backed_up = std::get_if<ShardBackedUp>(&output)) {
        waits_for_next_ = backed_up->more;
        is_backed_up_ = !backed_up->more;
      }
    }
    const bool is_awaited = backs_up_;
    if (++inputs_ == backs_up_at_) is_awaited ? Snapshot() : BackUp();
    if (backs_up_) BackUpMore();
  }
  void BackUpMore() {
    if (durable_ < records_.size()) {
      durable_ = records_.size();
      Take(rig_.shard().Apply(ShardDurable{durable_}));
    } else if (waits_for_next_ && inputs_ % kInputsForABlock == 0) {
      waits_for_next_ = false;
      Take(rig_.shard().Apply(ShardBackUp{ShardBackUp::Kind::kNext}));
    }
  }

  static constexpr int kInputsForABlock = 5;

  ShardRig rig_;
  BufferPool pool_{1 << 20};
  const size_t blocks_;
  const int backs_up_at_;
  std::map<uint32_t, std::vector<double>> figures_;
  float loss_scale_ = 1024;
  std::vector<std::shared_ptr<const ShardRecord>> records_;
  bool backs_up_;  // records count as durable at once
  size_t snapshot_at_ = 0;
  bool is_backed_up_ = false;
  bool waits_for_next_ = false;
  int inputs_ = 0;
  uint64_t durable_ = 0;
};

inline void ExpectReplayed(RecordedJob& job, const RecordCase& one) {
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

inline std::vector<RecordCase> AllOptimizersAndCodecs() {
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
                                "topk:min_elements=0,vectors=1,ratio=0.05",
                                "sparseloco:min_elements=0,vectors=1,ratio=0.05",
                                "demo:min_elements=0,vectors=1"};
  for (const char* codec : codecs) {
    RecordCase one = {.name = std::string(codec).substr(0, 4), .push = codec};
    one.training.optimizer = {.name = "adamw", .options = {{"lr", 0.01}}};
    // Codecs that are only for gradients do not encode views.
    if (one.name != "sign" && one.name != "int4") one.publish = codec;
    cases.push_back(one);
  }
  RecordCase whole = {.name = "lamb_of_two_blocks", .tensors = {kBlockElements + 3}};
  whole.training.optimizer = {.name = "lamb", .options = {{"lr", 0.01}}};
  cases.push_back(whole);
  return cases;
}

inline TrainingSettings Momentum() {
  return {.optimizer = {.name = "sgd", .options = {{"lr", 0.1}, {"momentum", 0.9}}}};
}

// Does everything that happens to the members of a job in mode bsp.
inline void LiveThroughALot(RecordedJob& job, const TrainingSettings& settings) {
  job.Step(0);
  job.Step(1, kNotFinite);
  job.ForEachBlock([&](uint32_t block) {  // worker 0 has no gradient
    job.Skip(0, block, 2);
    job.Push(1, block, 2);
  });
  job.Decide(2);
  job.ForEachBlock([&](uint32_t block) {  // no worker has one
    job.Skip(1, block, 3);
    job.Skip(0, block, 3);
  });
  job.Decide(3);
  // Worker 1 hands over and leaves, worker 2 joins; from step 5 on the rate is lower.
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
inline void PrintTo(const LifeCase& one, std::ostream* out) { *out << one.name; }

// Returns the job of such a life: it clips and scales the loss.
inline RecordCase JobOf(const LifeCase& life) {
  RecordCase one = {.push = life.push, .publish = "onebit:min_elements=0,vectors=1"};
  one.training = Momentum();
  one.training.accumulate_steps = life.accumulate_steps;
  one.training.aggregation = life.aggregation;
  one.training.gradient["clip_global_norm"] = 1;
  one.training.loss_scaling = {.name = "torch", .values = {{"init_scale", 1024}}};
  return one;
}

inline std::vector<LifeCase> LifeCases() {
  return {LifeCase{"contributions"},
          LifeCase{"senders", 1, {}, "sparseloco:min_elements=0,vectors=1,ratio=0.05"},
          LifeCase{"coefficients", 1, {}, "demo:min_elements=0,vectors=1"},
          LifeCase{"sums_of_senders", 1, {}, "topk:ratio=0.9,mean_of_senders=1"},
          LifeCase{"sums", 1, {}, "fp32"},
          LifeCase{"accumulated", 3},
          LifeCase{"accumulated_sums", 3, {}, "fp32"},
          LifeCase{"on_arrival", 1, Aggregation::kArrival},
          LifeCase{"accumulated_on_arrival", 3, Aggregation::kArrival}};
}

}  // namespace syncline
