#include "comm/codec/transfer.h"

#include <array>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;

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
  EXPECT_THAT(std::string(ParseTransfers("bf16", "onebti", {}).status().message()),
              HasSubstr("publish_codec: codec 'onebti' is unknown"));
}

}  // namespace
}  // namespace syncline
