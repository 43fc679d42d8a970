// Shared by the shard's tests: workers that push, and a naive single-process reference.
#pragma once

#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/codec/frame.h"
#include "gtest/gtest.h"
#include "server/shard/shard.h"

namespace syncline {

inline float RoundToBf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  return std::bit_cast<float>((bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff0000u);
}

inline float RoundAs(const std::string& codec, float value) {
  return codec == "bf16" ? RoundToBf16(value) : value;
}

// Deterministic values without structure, different for each seed.
inline std::vector<float> SomeValues(uint32_t elements, uint64_t seed) {
  std::vector<float> values(elements);
  uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
  for (float& value : values) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    value = static_cast<float>(static_cast<int32_t>(state >> 32)) * 0x1p-31f;
  }
  return values;
}

// One process that sums in rank order and applies the formulas of torch, in the float
// operations that server/optimizer documents.
class Reference {
 public:
  struct Push {
    std::vector<float> gradient;
    uint32_t samples;
  };

  Reference(const OptimizerSettings& settings, std::vector<float> weights)
      : settings_(settings),
        specs_(OptionsOf(settings.name)),
        weights_(std::move(weights)) {
    first_.resize(weights_.size());
    second_.resize(weights_.size());
  }

  void Step(const std::vector<Push>& pushes, const std::string& codec, float scale = 1) {
    ++t_;
    const std::vector<float> mean = Mean(pushes, codec);
    for (size_t i = 0; i < weights_.size(); ++i) {
      settings_.name == "adamw" ? AdamW(i, mean[i] * scale) : Sgd(i, mean[i] * scale);
    }
  }

  static std::vector<float> Mean(const std::vector<Push>& pushes,
                                 const std::string& codec) {
    double samples = 0;
    for (const Push& push : pushes) samples += push.samples;
    std::vector<float> mean(pushes.empty() ? 0 : pushes[0].gradient.size(), 0.0f);
    for (const Push& push : pushes) {
      const auto weight = static_cast<float>(push.samples / samples);
      for (size_t i = 0; i < mean.size(); ++i) {
        mean[i] += weight * RoundAs(codec, push.gradient[i]);
      }
    }
    return mean;
  }

  const std::vector<float>& weights() const { return weights_; }

 private:
  double Option(std::string_view name) const {
    return OptionOr(specs_, settings_.options, name);
  }

  void Sgd(size_t i, float scaled) {
    const double momentum = Option("momentum");
    const float g = scaled + static_cast<float>(Option("weight_decay")) * weights_[i];
    const auto rate = static_cast<float>(Option("lr"));
    if (momentum == 0) {
      weights_[i] -= rate * g;
      return;
    }
    const float fresh = t_ == 1 ? 1.0f : static_cast<float>(1.0 - Option("dampening"));
    first_[i] = static_cast<float>(momentum) * first_[i] + fresh * g;
    weights_[i] -= rate * first_[i];
  }

  void AdamW(size_t i, float g) {
    const double beta1 = Option("beta1");
    const double beta2 = Option("beta2");
    const double lr = Option("lr");
    first_[i] =
        static_cast<float>(beta1) * first_[i] + static_cast<float>(1.0 - beta1) * g;
    second_[i] = static_cast<float>(beta2) * second_[i] +
                 (static_cast<float>(1.0 - beta2) * g) * g;
    const auto correction =
        static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(beta2, t_)));
    const float denominator =
        std::sqrt(second_[i]) * correction + static_cast<float>(Option("eps"));
    const auto step_size = static_cast<float>(lr / (1.0 - std::pow(beta1, t_)));
    weights_[i] -= static_cast<float>(lr * Option("weight_decay")) * weights_[i] +
                   step_size * (first_[i] / denominator);
  }

  const OptimizerSettings settings_;
  const std::vector<OptionSpec> specs_;
  double t_ = 0;
  std::vector<float> weights_, first_, second_;
};

struct RigOptions {
  std::string codec = "bf16";  // of pushes and publishes
  std::string publish = "";    // of publishes; empty: `codec`
  std::string push = "";       // what shards accept; empty: `codec`
  TrainingSettings training = {};
  std::vector<uint64_t> tensors = {100};  // sizes of tensors of one dimension
  uint32_t job = 7;
  uint64_t seed = 0;
  std::vector<uint32_t> frozen = {};  // numbers of tensors
  std::vector<uint32_t> means = {};
  Records records = Records::kNone;
};

// Settings with which every step waits for a decision.
inline TrainingSettings Decided(const OptimizerSettings& optimizer = {}) {
  return {.optimizer = optimizer, .nonfinite_steps = NonfiniteSteps::kSkip};
}

// A shard that owns all blocks of a job, and the messages of its workers. Rank r has
// incarnation 10 + r and session key 1000 + r unless a test says otherwise.
class ShardRig {
 public:
  explicit ShardRig(RigOptions options) : options_(std::move(options)) {
    ranges_ = CutIntoBlocks(options_.tensors);
    std::vector<ShardBlock> blocks;
    for (uint32_t i = 0; i < ranges_.size(); ++i) blocks.push_back({i, ranges_[i]});
    ShardOptions shard_options = {.job = options_.job, .seed = options_.seed, .shard = 3};
    const std::string& publish =
        options_.publish.empty() ? options_.codec : options_.publish;
    const std::string& push = options_.push.empty() ? options_.codec : options_.push;
    transfers_ = {.push = *ParseTransfer(push), .publish = *ParseTransfer(publish)};
    shard_options.transfers.assign(options_.tensors.size(), transfers_);
    shard_options.seed_codec = *codecs_.Find(CodecId::kFp32);
    shard_options.training = options_.training;
    shard_options.records = options_.records;
    for (const uint64_t elements : options_.tensors) {
      shard_options.tensors.push_back({.shape = TensorShape({&elements, 1})});
    }
    for (const uint32_t tensor : options_.frozen) {
      shard_options.tensors[tensor].group.frozen = true;
    }
    for (const uint32_t tensor : options_.means) {
      shard_options.tensors[tensor].group.options = {{"mean", 1}};
    }
    shard_ = *Shard::Create(shard_options, blocks, pool_);
  }

  Shard& shard() { return *shard_; }
  // Gives the shard away. The rig must outlive it and is not used any more.
  std::unique_ptr<Shard> GiveShard() { return std::move(shard_); }
  const TensorTransfers& transfers() const { return transfers_; }
  const BlockRange& range(uint32_t block) const { return ranges_[block]; }
  const Codec& codec() const { return **codecs_.FindByName(options_.codec); }
  const Codec& codec(const char* name) const { return **codecs_.FindByName(name); }

  static ShardMember Member(uint32_t rank, uint64_t first_step = 0) {
    return {rank, 10 + rank, first_step, 1000 + rank};
  }

  ShardOutputs Commit(uint64_t epoch, const std::vector<ShardMember>& members) {
    return shard_->Apply(ShardCommit{epoch, members});
  }

  MessageHeader Header(MessageKind kind, uint32_t rank, uint32_t block,
                       uint64_t step) const {
    MessageHeader header;
    header.kind = static_cast<uint16_t>(kind);
    header.job = 7;
    header.rank = rank;
    header.incarnation = 10 + rank;
    header.session_key = 1000 + rank;
    header.block = block;
    header.epoch = shard_->epoch();
    header.step = step;
    header.samples = 1;
    return header;
  }

  ShardMessage SeedMessage(uint32_t rank, uint32_t block, std::vector<float> values) {
    const BlockLabel label = {ranges_[block], 0, shard_->epoch()};
    const Buffer payload =
        Gather(EncodeBlock(codec("fp32"), label, values, Checksum::kHeaderOnly, pool_));
    ShardMessage message = {Header(MessageKind::kSeed, rank, block, 0),
                            Slice::Of(payload)};
    message.header.samples = 0;  // updates of the optimizer's state before the seed
    return message;
  }

  ShardMessage PushMessage(uint32_t rank, uint32_t block, uint64_t step,
                           Reference::Push push) {
    const BlockLabel label = {ranges_[block], step, shard_->epoch()};
    const Buffer payload =
        Gather(EncodeBlock(codec(), label, push.gradient, Checksum::kHeaderOnly, pool_));
    ShardMessage message = {Header(MessageKind::kPush, rank, block, step),
                            Slice::Of(payload)};
    message.header.samples = push.samples;
    return message;
  }

  // Returns a message with what a leaving worker had kept.
  ShardMessage PartingMessage(uint32_t rank, uint32_t block, uint64_t step,
                              Reference::Push push) {
    const BlockLabel label = {ranges_[block], step, shard_->epoch()};
    const Buffer payload = Gather(
        EncodeBlock(codec("fp32"), label, push.gradient, Checksum::kHeaderOnly, pool_));
    ShardMessage message = {Header(MessageKind::kPush, rank, block, step),
                            Slice::Of(payload)};
    message.header.samples = push.samples;
    message.header.flags = kFlagParting;
    return message;
  }

  ShardOutputs Seed(uint32_t block, std::vector<float> values) {
    return shard_->Apply(SeedMessage(0, block, std::move(values)));
  }

  // Pushes values that follow from rank, block and step.
  Reference::Push PushOf(uint32_t rank, uint32_t block, uint64_t step) const {
    return {SomeValues(ranges_[block].elements, 1000 * rank + 100 * block + step + 1),
            3 + rank};
  }
  ShardOutputs Push(uint32_t rank, uint32_t block, uint64_t step) {
    return shard_->Apply(PushMessage(rank, block, step, PushOf(rank, block, step)));
  }
  ShardOutputs Pull(uint32_t rank, uint32_t block, uint64_t version) {
    return shard_->Apply(
        ShardMessage{Header(MessageKind::kPull, rank, block, version), {}});
  }

  std::vector<float> Weights(uint32_t block) const {
    const auto weights = shard_->block_weights(block);
    return {weights.begin(), weights.end()};
  }

  // Decodes a published view as a worker does, and checks its frames.
  std::vector<float> Decode(const ShardReply& reply) const {
    const BlockRange& range = ranges_[reply.header.block];
    const Buffer payload = Gather(reply.payload);
    const auto view = ParseBlock(
        payload.view(), {range, reply.header.step, reply.header.epoch}, {&codec()});
    EXPECT_TRUE(view.ok()) << view.status();
    std::vector<float> values(range.elements);
    if (!view.ok()) return values;
    for (const TileView& tile : view->tiles) {
      EXPECT_TRUE(codec()
                      .Decode(tile.bytes, std::span(values).subspan(tile.first_element,
                                                                    tile.elements))
                      .ok());
    }
    return values;
  }

 private:
  TensorTransfers transfers_;
  const RigOptions options_;
  const CodecRegistry codecs_ = CodecRegistry::Builtin();
  BufferPool pool_{64 << 20};
  std::vector<BlockRange> ranges_;
  std::unique_ptr<Shard> shard_;
};

// Returns the message as it lands if the sender lends its gradient: headers in one place
// and values in another. The block must have one tile.
inline ShardMessage InTwoPlaces(ShardMessage message) {
  const Slice whole = message.payload.body;
  const Buffer values =
      Buffer::CopyOf({whole.data + sizeof(TileHeader), whole.size - sizeof(TileHeader)});
  message.payload = {{whole.data, sizeof(TileHeader), whole.owner}, Slice::Of(values)};
  return message;
}

// Returns a line per output, which tests compare: "ack r0 b0 s1", "refuse r0 stale
// epoch", "publish r1 b0 v2", "applied b0 s1 by r0 r1", "figures b0 s1", "prepared e2
// s4", "committed e2".
inline std::vector<std::string> Lines(const ShardOutputs& outputs) {
  struct Describe {
    std::string operator()(const ShardReply& reply) const {
      const std::string who = absl::StrCat("r", reply.rank, " ");
      const std::string block = absl::StrCat("b", reply.header.block, " ");
      switch (static_cast<MessageKind>(reply.header.kind)) {
        case MessageKind::kAck:
          return absl::StrCat("ack ", who, block, "s", reply.header.step);
        case MessageKind::kPublish:
          return absl::StrCat(
              (reply.header.flags & kFlagUnchanged) != 0 ? "unchanged " : "publish ", who,
              block, "v", reply.header.step);
        case MessageKind::kNoted:
          return absl::StrCat("noted ", who, block, "v", reply.header.step);
        default:
          return absl::StrCat("refuse ", who,
                              RefuseCodeName(static_cast<RefuseCode>(reply.header.code)));
      }
    }
    std::string operator()(const ShardApplied& applied) const {
      std::string line = absl::StrCat("applied b", applied.block, " s", applied.step,
                                      applied.skipped ? " skipped" : " by");
      if (applied.skipped) return line;
      for (const auto& who : applied.contributors) absl::StrAppend(&line, " r", who.rank);
      return line;
    }
    std::string operator()(const ShardFigures& figures) const {
      return absl::StrCat("figures b", figures.block, " s", figures.step);
    }
    std::string operator()(const ShardHeld& held) const {
      std::string line = absl::StrCat("held s", held.step, " of");
      for (const uint32_t life : held.incarnations) absl::StrAppend(&line, " ", life);
      return line;
    }
    std::string operator()(const ShardBackedUp& backed_up) const {
      return backed_up.more ? "backed up, more" : "backed up";
    }
    std::string operator()(const ShardRecorded&) const { return "recorded"; }
    std::string operator()(const ShardPrepared& prepared) const {
      return absl::StrCat("prepared e", prepared.epoch, " s", prepared.next_step);
    }
    std::string operator()(const ShardCommitted& committed) const {
      return absl::StrCat("committed e", committed.epoch);
    }
    std::string operator()(const ShardCopied& copied) const {
      return absl::StrCat("copied b", copied.block, " v", copied.step);
    }
    std::string operator()(const ShardCutDone& cut) const {
      return absl::StrCat("cut v", cut.step);
    }
  };
  std::vector<std::string> lines;
  for (const ShardOutput& output : outputs) {
    lines.push_back(std::visit(Describe{}, output));
  }
  return lines;
}

}  // namespace syncline
