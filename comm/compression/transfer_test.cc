#include "comm/compression/transfer.h"

#include <array>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::AllOf;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::Le;

std::string Refusal(std::string_view text) {
  return std::string(ParseTransfer(text).status().message());
}

TEST(Transfer, EveryPresetIsMadeAndCarriesATile) {
  std::mt19937 random(1);
  std::vector<float> values(kTileElements);
  for (float& value : values) value = std::normal_distribution<float>()(random);
  for (const TransferPreset& preset : TransferPresets()) {
    const auto transfer = ParseTransfer(preset.name);
    ASSERT_TRUE(transfer.ok()) << preset.name << ": " << transfer.status();
    const Codec& codec = *transfer->codec;
    std::vector<std::byte> bytes(codec.MaxEncodedBytes(kTileElements));
    bytes.resize(codec.Encode(values, {}, {}, bytes));
    std::vector<float> decoded(kTileElements);
    EXPECT_TRUE(codec.Decode(bytes, decoded).ok()) << preset.name;
    EXPECT_EQ(transfer->compresses(), codec.traits().finite_only) << preset.name;
    EXPECT_FALSE(preset.meaning.empty());
  }
}

TEST(Transfer, TrueWireSizes) {
  const auto bytes_of = [](std::string_view text) {
    std::mt19937 random(2);
    std::vector<float> values(kTileElements);
    for (float& value : values) value = std::normal_distribution<float>()(random);
    const Transfer transfer = *ParseTransfer(text);
    std::vector<std::byte> bytes(transfer.codec->MaxEncodedBytes(kTileElements));
    return static_cast<double>(sizeof(TileHeader) +
                               transfer.codec->Encode(values, {}, {}, bytes));
  };
  constexpr double kFp32Bytes = 4.0 * kTileElements;
  EXPECT_GE(kFp32Bytes / bytes_of("onebit"), 31);
  EXPECT_GE(kFp32Bytes / bytes_of("topk:ratio=0.01,values=int8"), 120);
  EXPECT_GE(kFp32Bytes / bytes_of("topk:ratio=0.001,values=bf16"), 850);
  EXPECT_GE(kFp32Bytes / bytes_of("int8"), 3.9);
  EXPECT_GE(kFp32Bytes / bytes_of("twobit"), 15.5);
  // 64 and 128 of 4,096 values; the paper reports ratios of 146 and 97.
  EXPECT_GE(kFp32Bytes / bytes_of("sparseloco"), 195);
  EXPECT_GE(kFp32Bytes / bytes_of("sparseloco:ratio=0.03125"), 110);
  EXPECT_GE(kFp32Bytes / bytes_of("demo"), 155);
  EXPECT_GE(kFp32Bytes / bytes_of("demo:values=onebit"), 365);
  EXPECT_GE(kFp32Bytes / bytes_of("terngrad"), 15.5);
}

TEST(Transfer, OptionsReachTheCodecAndTheMemory) {
  const auto transfer =
      ParseTransfer("dgc:ratio=0.25,momentum=0.5,nesterov=1,min_elements=7,vectors=1");
  ASSERT_TRUE(transfer.ok()) << transfer.status();
  EXPECT_EQ(transfer->memory,
            (MemorySpec{MemoryKind::kMomentumCorrection, 1, 0.5, true}));
  EXPECT_EQ(transfer->what.min_elements, 7u);
  EXPECT_TRUE(transfer->what.vectors);
  std::vector<float> values(1000, 1.0f);
  std::vector<std::byte> bytes(transfer->codec->MaxEncodedBytes(1000));
  bytes.resize(transfer->codec->Encode(values, {}, {}, bytes));
  EXPECT_EQ(transfer->codec->Nonzeros(bytes, 1000), 250u);
  EXPECT_EQ(ParseTransfer("topk:memory=none")->memory.kind, MemoryKind::kNone);
  EXPECT_EQ(ParseTransfer("onebit:decay=0.5")->memory.decay, 0.5);
}

TEST(Transfer, SparseLoCoIsTopKOfChunksInTwoBitsWithAMeanOfItsSenders) {
  const Transfer transfer = *ParseTransfer("sparseloco");
  EXPECT_EQ(transfer.selector->chunk_log2, 12u);
  EXPECT_EQ(TopCount(*transfer.selector, 4096, 0), 64u);
  EXPECT_TRUE(transfer.mean_of_senders);
  EXPECT_EQ(transfer.memory.kind, MemoryKind::kErrorFeedback);
  EXPECT_EQ(transfer.memory.decay, 0.95);
  // The same transfer, written out, must give the same bytes.
  const Transfer parts = *ParseTransfer(
      "topk:ratio=0.015625,chunk_log2=12,values=twobit,decay=0.95,mean_of_senders=1");
  EXPECT_EQ(parts.memory, transfer.memory);
  EXPECT_TRUE(parts.mean_of_senders);
  std::mt19937 random(3);
  std::vector<float> values(kTileElements);
  for (float& value : values) value = std::normal_distribution<float>()(random);
  const auto encode = [&](const Transfer& with) {
    std::vector<std::byte> bytes(with.codec->MaxEncodedBytes(kTileElements));
    bytes.resize(with.codec->Encode(values, {}, {}, bytes));
    return bytes;
  };
  EXPECT_EQ(encode(transfer), encode(parts));
  EXPECT_FALSE(ParseTransfer("topk")->mean_of_senders);
  EXPECT_FALSE(ParseTransfer("sparseloco:mean_of_senders=0")->mean_of_senders);
  // Tensors that are sent densely are averaged over all workers.
  EXPECT_FALSE(transfer.ForTensor({.elements = 4095, .dimensions = 2})->mean_of_senders);
  EXPECT_FALSE(transfer.ForTensor({.elements = 4096, .dimensions = 1})->mean_of_senders);
  EXPECT_TRUE(transfer.ForTensor({.elements = 4096, .dimensions = 2})->mean_of_senders);
  EXPECT_THAT(Refusal("sparseloco:chunk_log2=7"), HasSubstr("chunk_log2"));
  EXPECT_THAT(Refusal("sparseloco:scope=tensor"), HasSubstr("scope=tile"));
}

TEST(Transfer, DeMoIsTopKOfCoefficientsOfTheMomentumWithAMeanOfItsSenders) {
  const Transfer transfer = *ParseTransfer("demo");
  EXPECT_EQ(transfer.codec->id(), CodecId::kDct);
  EXPECT_EQ(transfer.codec->name(), "demo");
  EXPECT_EQ(TopCount(*transfer.selector, 4096, 0), 32u);
  EXPECT_EQ(transfer.selector->chunk_log2, 12u);
  EXPECT_TRUE(transfer.mean_of_senders);
  EXPECT_TRUE(transfer.keeps_momentum);
  EXPECT_EQ(transfer.memory.kind, MemoryKind::kErrorFeedback);
  EXPECT_EQ(transfer.memory.decay, 0.999);
  EXPECT_FALSE(ParseTransfer("demo:mean_of_senders=0")->mean_of_senders);
  EXPECT_EQ(ParseTransfer("demo:decay=0.9")->memory.decay, 0.9);
  EXPECT_FALSE(ParseTransfer("sparseloco")->keeps_momentum);
  // The codec of a tensor has its columns.
  const auto header_of = [&](const Transfer& one) {
    std::vector<std::byte> bytes(one.codec->MaxEncodedBytes(10));
    one.codec->Encode(std::vector<float>(10, 1.0f), {}, {}, bytes);
    return std::to_integer<int>(bytes[0]) + 256 * std::to_integer<int>(bytes[1]);
  };
  const Transfer own = *transfer.ForTensor(Transfer::ShapeOf("w", {{50, 30, 10}}));
  EXPECT_EQ(header_of(own), 300);
  EXPECT_TRUE(own.keeps_momentum);
  // A tensor that is sent at once leaves no momentum.
  const Transfer small = *transfer.ForTensor({.elements = 4095, .dimensions = 2});
  EXPECT_FALSE(small.keeps_momentum);
  EXPECT_FALSE(small.mean_of_senders);
}

TEST(Transfer, DeMoRefusesWhatItDoesNotHave) {
  EXPECT_THAT(Refusal("demo:decay=1.5"),
              HasSubstr("decay is 1.5, but must be in [0, 1]"));
  EXPECT_THAT(Refusal("demo:ratio=0"),
              HasSubstr("ratio is 0, but must be in [1e-06, 1]"));
  EXPECT_THAT(Refusal("demo:chunk_log2=7"), HasSubstr("a whole number in [8, 16]"));
  for (const char* text : {"demo:memory=dgc", "demo:memory=ef", "demo:momentum=0.9",
                           "demo:nesterov=1", "demo:scope=tensor"}) {
    EXPECT_THAT(Refusal(text), HasSubstr("codec 'demo' has no option")) << text;
  }
  EXPECT_THAT(Refusal("topk:values=demo"), HasSubstr("selects itself"));
}

TEST(Transfer, QuantizersMayBeRotated) {
  const auto transfer = ParseTransfer("int4:rotate=1");
  ASSERT_TRUE(transfer.ok()) << transfer.status();
  EXPECT_EQ(transfer->codec->id(), CodecId::kRotated);
  EXPECT_EQ(transfer->codec->name(), "rotated int4");
  EXPECT_EQ(ParseTransfer("int4:rotate=0")->codec->id(), CodecId::kInt4);
  EXPECT_TRUE(ParseTransfer("topk:values=int8:rotate=1").ok());
  EXPECT_THAT(Refusal("signsgd:rotate=1"), HasSubstr("no option 'rotate'"));
  EXPECT_THAT(Refusal("topk:rotate=1"), HasSubstr("no option 'rotate'"));
}

TEST(Transfer, SmallTensorsAndVectorsTravelDensely) {
  const Transfer transfer = *ParseTransfer("onebit");
  EXPECT_TRUE(transfer.ForTensor({.elements = 16384, .dimensions = 2})->compresses());
  EXPECT_FALSE(transfer.ForTensor({.elements = 16383, .dimensions = 2})->compresses());
  const Transfer vector = *transfer.ForTensor({.elements = 1 << 20, .dimensions = 1});
  EXPECT_FALSE(vector.compresses());
  EXPECT_EQ(vector.codec->id(), CodecId::kBf16);
  EXPECT_EQ(vector.memory.kind, MemoryKind::kNone);
  EXPECT_TRUE(ParseTransfer("onebit:vectors=1")
                  ->ForTensor({.elements = 1 << 20, .dimensions = 1})
                  ->compresses());
  EXPECT_EQ(
      ParseTransfer("fp32")->ForTensor({.elements = 1, .dimensions = 1})->codec->id(),
      CodecId::kFp32);
}

TEST(Transfer, PowerSgdIsMadeForEachTensor) {
  const Transfer transfer = *ParseTransfer("powersgd:rank=2");
  const auto of = [&](std::vector<uint64_t> extents) {
    return transfer.ForTensor(Transfer::ShapeOf("layer", extents));
  };
  const auto matrix = of({512, 300});
  ASSERT_TRUE(matrix.ok()) << matrix.status();
  EXPECT_EQ(matrix->codec->name(), "lowrank:rank=2,columns=300");
  EXPECT_EQ(of({64, 32, 3, 3})->codec->name(), "lowrank:rank=2,columns=288");
  EXPECT_EQ(of({1 << 20})->codec->id(), CodecId::kBf16) << "vectors travel densely";
  EXPECT_EQ(of({100, 100})->codec->id(), CodecId::kBf16) << "so do small tensors";
  EXPECT_THAT(std::string(of({100, 32768}).status().message()),
              HasSubstr("tensor 'layer': must send at most half of the numbers"));
  const auto vector =
      ParseTransfer("powersgd:vectors=1")
          ->ForTensor(Transfer::ShapeOf("bias", std::array{uint64_t{99999}}));
  EXPECT_THAT(std::string(vector.status().message()),
              HasSubstr("tensor 'bias': needs a matrix"));
  const std::array shapes = {
      Transfer::ShapeOf("wide", std::array<uint64_t, 2>{9, 32768})};
  EXPECT_THAT(std::string(ParseTransfers("powersgd", "bf16", shapes).status().message()),
              HasSubstr("push_codec: tensor 'wide'"));
  EXPECT_THAT(std::string(ParseTransfers("bf16", "powersgd", shapes).status().message()),
              HasSubstr("publish_codec: tensor 'wide'"));
  EXPECT_THAT(Refusal("powersgd:rank=0"), HasSubstr("[1, 64]"));
  EXPECT_THAT(Refusal("powersgd:rank=65"), HasSubstr("[1, 64]"));
  EXPECT_THAT(Refusal("powersgd:rank=1.5"), HasSubstr("rank"));
  EXPECT_THAT(Refusal("topk:values=powersgd"), HasSubstr("needs whole matrices"));
}

TEST(Transfer, WrongTextsSayWhatIsAllowed) {
  EXPECT_THAT(Refusal("topq"), HasSubstr("'topq' is unknown; did you mean 'topk'?"));
  EXPECT_THAT(Refusal("int3"), HasSubstr("'int3' is unknown"));
  EXPECT_THAT(Refusal(""), HasSubstr("is unknown"));
  EXPECT_THAT(Refusal("topk:ratio=0"), HasSubstr("ratio"));
  EXPECT_THAT(Refusal("topk:ratio=1.5"), HasSubstr("1]"));
  EXPECT_THAT(Refusal("topk:ratio=nan"), HasSubstr("ratio"));
  EXPECT_THAT(Refusal("topk:ratios=0.1"), HasSubstr("did you mean 'ratio'?"));
  EXPECT_THAT(Refusal("topk:ratio"), HasSubstr("ratio"));
  EXPECT_THAT(Refusal("topk:values=topk"), HasSubstr("selects itself"));
  EXPECT_THAT(Refusal("topk:values=int9"), HasSubstr("did you mean"));
  EXPECT_THAT(Refusal("onebit:values=int8"), HasSubstr("no option 'values'"));
  EXPECT_THAT(Refusal("onebit:memory=eff"), HasSubstr("did you mean 'ef'?"));
  EXPECT_THAT(Refusal("onebit:memory=ef21"), HasSubstr("copy for each worker"));
  EXPECT_THAT(Refusal("terngrad:memory=ef"), HasSubstr("grow without end"));
  EXPECT_THAT(Refusal("terngrad:clip=0,memory=ef"), HasSubstr("grow without end"));
  EXPECT_THAT(Refusal("terngrad:clip=0.5"), HasSubstr("0 or at least 1"));
  EXPECT_THAT(Refusal("int2:clip=2"), HasSubstr("no option 'clip'"));
  EXPECT_THAT(Refusal("onebit:block_log2=3"), HasSubstr("[8, 16]"));
  EXPECT_THAT(Refusal("bf16:memory=ef"), HasSubstr("has no options"));
  EXPECT_THAT(Refusal("topk:ratio=0.1,warmup_steps=9,warmup_ratio=0.05"),
              HasSubstr("warmup_ratio 0.05 of a sparse codec is not in [0.1, 1]"));
  EXPECT_THAT(Refusal("topk:ratio=0.5,warmup_steps=9"), HasSubstr("warmup_ratio 0.25"));
  EXPECT_THAT(Refusal("blocks:warmup_steps=9"), HasSubstr("no option 'warmup_steps'"));
  EXPECT_THAT(Refusal("topk:scope=world"), HasSubstr("'tile' or 'tensor'"));
  EXPECT_THAT(Refusal("randomk:scope=tensor"), HasSubstr("no option 'scope'"));
  EXPECT_THAT(Refusal("onebit:scope=tensor"), HasSubstr("no option 'scope'"));
}

TEST(Transfer, RatiosWarmUpAfterTheDenseSteps) {
  for (const char* name : {"topk", "topk-sampled", "topk-reuse", "dgc", "randomk"}) {
    const auto transfer = ParseTransfer(
        std::string(name) +
        ":ratio=0.01,warmup_ratio=0.16,warmup_steps=4,dense_steps=100,memory=none");
    ASSERT_TRUE(transfer.ok()) << transfer.status();
    ASSERT_TRUE(transfer->selector.has_value());
    EXPECT_EQ(transfer->TensorTopCount(kTileElements, 0), 0u) << "scope is tile";
    std::vector<float> values(10'000);
    std::mt19937 random(1);
    for (float& value : values) value = std::normal_distribution<float>()(random);
    const auto sent_at = [&](uint64_t step) {
      std::vector<std::byte> bytes(transfer->codec->MaxEncodedBytes(10'000));
      bytes.resize(transfer->codec->Encode(values, {}, {.step = step}, bytes));
      EXPECT_TRUE(transfer->codec->Validate(bytes, 10'000).ok());
      return static_cast<double>(transfer->codec->Nonzeros(bytes, 10'000));
    };
    const auto is_about = [](double k) { return AllOf(Ge(k / 2), Le(2 * k)); };
    EXPECT_THAT(sent_at(100), is_about(1600)) << name;
    EXPECT_THAT(sent_at(102), is_about(400)) << name;
    EXPECT_THAT(sent_at(104), is_about(100)) << name;
    EXPECT_THAT(sent_at(1'000'000), is_about(100)) << name;
  }
}

TEST(Transfer, TopKOfATensorCountsInTheTensor) {
  for (const std::string name : {"topk", "dgc"}) {
    const auto transfer =
        ParseTransfer(name + ":scope=tensor,ratio=0.01,warmup_ratio=0.04,warmup_steps=2");
    ASSERT_TRUE(transfer.ok()) << transfer.status();
    EXPECT_EQ(transfer->TensorTopCount(1'000'000, 0), 40'000u);
    EXPECT_EQ(transfer->TensorTopCount(1'000'000, 1), 20'000u);
    EXPECT_EQ(transfer->TensorTopCount(1'000'000, 2), 10'000u);
    EXPECT_EQ(transfer->TensorTopCount(kTileElements, 2), 0u) << "one tile";
    EXPECT_TRUE(ParseTransfers(name + ":scope=tensor", "bf16", {}).ok());
    EXPECT_THAT(
        std::string(
            ParseTransfers("bf16", name + ":scope=tensor", {}).status().message()),
        HasSubstr("publish_codec: scope=tensor needs all of a tensor in one place"));
  }
  EXPECT_EQ(ParseTransfer("topk:scope=tile")->TensorTopCount(1'000'000, 0), 0u);
  EXPECT_EQ(ParseTransfer("onebit")->TensorTopCount(1'000'000, 0), 0u);
}

// For small tensors, blocks take fewer bytes than top-k, whose encodings they also
// decode.
TEST(Transfer, ReceiversHaveRoomForACandidateOfAnySize) {
  const auto transfer = ParseTransfer("auto:statistics=1,ratio=0.02,min_elements=0");
  ASSERT_TRUE(transfer.ok()) << transfer.status();
  const CodecSet accepted = transfer->Accepted();
  BufferPool pool(0);
  for (uint32_t elements = 1; elements < 300; ++elements) {
    const BlockLabel label = {.range = {.elements = elements}};
    const std::vector<float> values(elements, 3);
    for (size_t i = 0; i < transfer->candidates.size(); ++i) {
      const Transfer now = transfer->Using(static_cast<Candidate>(i));
      const Buffer block =
          Gather(EncodeBlock(*now.codec, label, values, Checksum::kHeaderOnly, pool));
      const auto view = ParseBlock(block.view(), label, accepted);
      EXPECT_TRUE(view.ok()) << elements << " by " << i << ": " << view.status();
    }
  }
}

TEST(Transfer, AutoOffersCandidatesAndReceiversTakeAnyOfThem) {
  for (const bool by_statistics : {false, true}) {
    const auto transfer =
        ParseTransfer(by_statistics ? "auto:statistics=1,ratio=0.02" : "auto:ratio=0.02");
    ASSERT_TRUE(transfer.ok()) << transfer.status();
    EXPECT_TRUE(transfer->chooses());
    EXPECT_EQ(transfer->policy.by_statistics, by_statistics);
    EXPECT_EQ(transfer->policy.ratio, 0.02);
    EXPECT_EQ(transfer->memory.kind, MemoryKind::kErrorFeedback);
    EXPECT_EQ(transfer->codec->name(), "topk") << "until one is chosen";
    ASSERT_EQ(transfer->candidates.size(), by_statistics ? kCandidates : kCandidates - 1);
    const CodecSet accepted = transfer->Accepted();
    EXPECT_EQ(accepted.size(), 4u) << "topk and blocks have one id";
    std::mt19937 random(1);
    std::vector<float> values(kTileElements);
    for (float& value : values) value = std::normal_distribution<float>()(random);
    for (size_t i = 0; i < transfer->candidates.size(); ++i) {
      const Transfer now = transfer->Using(static_cast<Candidate>(i));
      EXPECT_TRUE(now.compresses());
      const BlockLabel label = {.range = {.elements = kTileElements}};
      BufferPool pool(0);
      const Buffer block =
          Gather(EncodeBlock(*now.codec, label, values, Checksum::kHeaderOnly, pool));
      EXPECT_LE(block.size(), MaxBlockBytes(accepted, kTileElements));
      const auto view = ParseBlock(block.view(), label, accepted);
      ASSERT_TRUE(view.ok()) << i << ": " << view.status();
      std::vector<float> got(kTileElements);
      std::vector<float> want(kTileElements);
      const TileView& tile = view->tiles[0];
      ASSERT_TRUE(tile.codec->Decode(tile.bytes, got).ok());
      ASSERT_TRUE(now.codec->Decode(tile.bytes, want).ok());
      EXPECT_EQ(got, want) << i;
    }
  }
  EXPECT_FALSE(ParseTransfer("topk")->chooses());
  EXPECT_FALSE(
      ParseTransfer("auto")->ForTensor({.elements = 10, .dimensions = 1})->chooses());
  EXPECT_THAT(Refusal("auto:memory=dgc"), HasSubstr("no option 'memory'"));
  EXPECT_THAT(Refusal("topk:values=auto"), HasSubstr("selects itself"));
  EXPECT_TRUE(ParseTransfers("auto", "bf16", {}).ok());
  EXPECT_THAT(std::string(ParseTransfers("bf16", "auto", {}).status().message()),
              HasSubstr("publish_codec: 'auto' chooses by what one sender measures"));
}

TEST(Transfer, CanonicalTextsOfEqualTransfersAreEqual) {
  EXPECT_EQ(CanonicalTransfer("topk:ratio=0.01"), "topk");
  EXPECT_EQ(CanonicalTransfer("topk:vectors=1,ratio=0.5"),
            CanonicalTransfer("topk:ratio=0.5,vectors=1"));
  EXPECT_NE(CanonicalTransfer("topk:values=int8"), CanonicalTransfer("topk"));
  EXPECT_EQ(CanonicalTransfer("bf16"), "bf16");
  for (const char* text : {"onebit:min_elements=1234567", "onebit:decay=0.99999999",
                           "topk:ratio=0.0123456789"}) {
    EXPECT_EQ(CanonicalTransfer(text), text);
  }
}

TEST(Transfer, ThoseOfAJobFollowTheTensors) {
  const std::array<Transfer::Shape, 2> shapes = {
      {{.elements = 1 << 20, .dimensions = 2}, {.elements = 10, .dimensions = 1}}};
  const auto transfers = ParseTransfers("topk", "onebit", shapes);
  ASSERT_TRUE(transfers.ok());
  ASSERT_EQ(transfers->size(), 2u);
  EXPECT_EQ((*transfers)[0].push.codec->id(), CodecId::kSparse);
  EXPECT_EQ((*transfers)[0].publish.codec->id(), CodecId::kSign);
  EXPECT_EQ((*transfers)[0].publish.memory.kind, MemoryKind::kNone);
  EXPECT_EQ((*transfers)[1].push.codec->id(), CodecId::kBf16);
  for (const char* codec : {"signsgd", "terngrad"}) {
    EXPECT_TRUE(ParseTransfers(codec, "bf16", shapes).ok());
    EXPECT_THAT(std::string(ParseTransfers("bf16", codec, {}).status().message()),
                HasSubstr("for gradients only"));
  }
  for (const char* codec : {"dgc", "topk:memory=dgc"}) {
    EXPECT_TRUE(ParseTransfers(codec, "bf16", shapes).ok());
    EXPECT_THAT(std::string(ParseTransfers("bf16", codec, {}).status().message()),
                HasSubstr("publish_codec: momentum is corrected where gradients are"));
  }
  EXPECT_THAT(std::string(ParseTransfers("bf16", "onebti", {}).status().message()),
              HasSubstr("publish_codec: codec 'onebti' is unknown"));
}

TEST(Transfer, TakesTheNamesThatOthersUse) {
  EXPECT_EQ(CanonicalTransfer("bytegrad:block_log2=9"), "int8:block_log2=9");
  EXPECT_EQ(CanonicalTransfer("dithering"), "int8-stochastic");
  EXPECT_EQ(ParseTransfer("1bit")->codec->id(), CodecId::kSign);
}

}  // namespace
}  // namespace syncline
