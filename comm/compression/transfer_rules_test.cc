#include "comm/compression/transfer_rules.h"

#include <array>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kLarge = 1 << 20;

std::array<Transfer::Shape, 5> Tensors() {
  std::array<Transfer::Shape, 5> tensors;
  constexpr const char* kNames[] = {"embed.weight", "layers.0.weight", "layers.1.weight",
                                    "head.weight", "head.bias"};
  for (size_t i = 0; i < tensors.size(); ++i) {
    tensors[i] = {.elements = kLarge, .dimensions = 2, .name = kNames[i]};
  }
  tensors[4].dimensions = 1;
  return tensors;
}

std::string Refusal(std::string_view push, std::string_view publish = "bf16") {
  return std::string(ParseTransfers(push, publish, Tensors()).status().message());
}

// The definition of a pattern, by recursion.
bool Matches(std::string_view pattern, std::string_view name) {
  if (pattern.empty()) return name.empty();
  if (pattern[0] == '*') {
    return Matches(pattern.substr(1), name) ||
           (!name.empty() && Matches(pattern, name.substr(1)));
  }
  return !name.empty() && (pattern[0] == '?' || pattern[0] == name[0]) &&
         Matches(pattern.substr(1), name.substr(1));
}

TEST(TransferRules, PatternsMatchAsTheirDefinitionSays) {
  std::vector<std::string> patterns = {""};
  std::vector<std::string> names = {""};
  const auto grow = [](std::vector<std::string>& texts, std::string_view letters) {
    for (size_t i = 0; i < texts.size(); ++i) {
      if (texts[i].size() == 5) continue;
      for (const char letter : letters) texts.push_back(texts[i] + letter);
    }
  };
  grow(patterns, "ab?*");
  grow(names, "ab");
  for (const std::string& pattern : patterns) {
    for (const std::string& name : names) {
      ASSERT_EQ(MatchesPattern(pattern, name), Matches(pattern, name))
          << "'" << pattern << "' '" << name << "'";
    }
  }
}

TEST(TransferRules, PatternsOfManyStarsTakeNoTime) {
  std::string pattern;
  for (int i = 0; i < 40; ++i) pattern += "*a";
  EXPECT_FALSE(MatchesPattern(pattern, std::string(1000, 'a') + "b"));
}

TEST(TransferRules, ThereAreNotTooMany) {
  std::string text;
  for (size_t i = 1; i < kMaxRules; ++i) text += "bf16@*;";
  text += "bf16";
  EXPECT_TRUE(ParseTransfers(text, "bf16", {}).ok());
  EXPECT_THAT(Refusal("bf16@*;" + text), HasSubstr("more than 256 rules"));
}

TEST(TransferRules, TheFirstThatTakesATensorCounts) {
  const auto transfers =
      ParseTransfers("blocks@embed*; fp32@*.0.* ;onebit@layers.?.weight;topk",
                     "bf16@embed*;onebit:vectors=1@head.*;int8", Tensors());
  ASSERT_TRUE(transfers.ok()) << transfers.status();
  EXPECT_EQ((*transfers)[0].push.codec->name(), "blocks");
  EXPECT_EQ((*transfers)[1].push.codec->id(), CodecId::kFp32);
  EXPECT_EQ((*transfers)[2].push.codec->id(), CodecId::kSign);
  EXPECT_EQ((*transfers)[3].push.codec->name(), "topk");
  EXPECT_EQ((*transfers)[4].push.codec->id(), CodecId::kBf16) << "a vector";
  EXPECT_EQ((*transfers)[0].publish.codec->id(), CodecId::kBf16);
  EXPECT_EQ((*transfers)[1].publish.codec->id(), CodecId::kInt8);
  EXPECT_EQ((*transfers)[3].publish.codec->id(), CodecId::kSign);
  EXPECT_EQ((*transfers)[4].publish.codec->id(), CodecId::kSign) << "vectors=1";
  EXPECT_EQ((*transfers)[4].publish.memory.kind, MemoryKind::kNone);
}

TEST(TransferRules, ErrorsNameTheSettingTheRuleAndWhatIsWrong) {
  EXPECT_THAT(Refusal("topq@embed*;bf16"),
              HasSubstr("push_codec: rule 'topq@embed*': codec 'topq' is unknown"));
  EXPECT_THAT(Refusal("topk@embed*;bf61"), HasSubstr("push_codec: rule 'bf61': codec"));
  EXPECT_THAT(Refusal("bf16", "topk:ratio=2@embed*;bf16"),
              HasSubstr("publish_codec: rule 'topk:ratio=2@embed*': "));
  EXPECT_THAT(Refusal("bf16", "signsgd@embed*;bf16"),
              HasSubstr("publish_codec: rule 'signsgd@embed*': deltas"));
  EXPECT_THAT(Refusal("topk@embde.weight;bf16"),
              HasSubstr("rule 'topk@embde.weight': no tensor of the job has such a name; "
                        "did you mean 'embed.weight'?"));
  EXPECT_THAT(Refusal("topk@*.weight;onebit@head.w*;bf16"),
              HasSubstr("rule 'onebit@head.w*': never applies: rule 'topk@*.weight' "
                        "before it takes 'head.weight'"));
  EXPECT_THAT(Refusal("topk@embed*"),
              HasSubstr("push_codec: after rule 'topk@embed*' nothing says"));
  EXPECT_THAT(Refusal("topk;bf16@embed*"), HasSubstr("rule 'topk' has no pattern"));
  EXPECT_THAT(Refusal("topk;bf16"), HasSubstr("rule 'topk' has no pattern"));
  for (const char* text : {"topk@embed*;", ";topk", "topk@embed*;;bf16", ";"}) {
    EXPECT_THAT(Refusal(text), HasSubstr("is empty")) << text;
  }
  EXPECT_THAT(Refusal("@embed*;bf16"), HasSubstr("has no codec before its '@'"));
  EXPECT_THAT(Refusal("topk@;bf16"), HasSubstr("has no pattern after its '@'"));
}

TEST(TransferRules, PatternsAreComparedWithTensorsOnlyWhereThereAreSome) {
  EXPECT_TRUE(ParseTransfers("topk@nothing;bf16", "bf16", {}).ok());
  EXPECT_FALSE(ParseTransfers("topk@nothing", "bf16", {}).ok());
}

TEST(TransferRules, CanonicalTextsOfEqualRulesAreEqual) {
  EXPECT_EQ(CanonicalTransfer(" topk:ratio=0.01 @ embed* ; int8:vectors=1,block_log2=8 "),
            "topk@embed*;int8:block_log2=8,vectors=1");
  EXPECT_NE(CanonicalTransfer("topk@a;onebit@b;bf16"),
            CanonicalTransfer("onebit@b;topk@a;bf16"));
  EXPECT_EQ(CanonicalTransfer("topk@embed*"), "topk@embed*") << "wrong ones stay";
}

}  // namespace
}  // namespace syncline
