#include "comm/codec/codec.h"
#include "comm/codec/fp32/fp32.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

TEST(CodecRegistry, FindsBuiltinCodecsByIdAndByName) {
  const CodecRegistry registry = CodecRegistry::Builtin();
  EXPECT_THAT(registry.Names(),
              UnorderedElementsAre("fp32", "bf16", "fp16", "bf16-stochastic"));
  EXPECT_EQ((*registry.Find(CodecId::kFp32))->name(), "fp32");
  EXPECT_EQ((*registry.FindByName("bf16"))->id(), CodecId::kBf16);
}

TEST(CodecRegistry, WireIdsNeverChange) {
  EXPECT_EQ(static_cast<int>(CodecId::kFp32), 1);
  EXPECT_EQ(static_cast<int>(CodecId::kBf16), 2);
  EXPECT_EQ(static_cast<int>(CodecId::kFp16), 3);
  EXPECT_EQ(static_cast<int>(CodecId::kBf16Stochastic), 4);
}

TEST(CodecRegistry, NotFoundSaysWhatThereIs) {
  const CodecRegistry registry = CodecRegistry::Builtin();
  const auto by_name = registry.FindByName("bf61");
  EXPECT_EQ(by_name.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(by_name.status().message()),
              AllOf(HasSubstr("bf61"), HasSubstr("fp32, bf16, fp16, bf16-stochastic")));
  EXPECT_EQ(registry.Find(static_cast<CodecId>(77)).status().code(),
            absl::StatusCode::kNotFound);
}

TEST(CodecRegistryDeathTest, RefusesTwoCodecsWithOneId) {
  CodecRegistry registry = CodecRegistry::Builtin();
  EXPECT_DEATH(registry.Register(MakeFp32Codec()), "CHECK failed");
}

}  // namespace
}  // namespace syncline
