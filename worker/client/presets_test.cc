#include "worker/client/presets.h"

#include <string>

#include "comm/compression/transfer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Presets, SetOptimizerAndCodecsAndNothingElse) {
  SessionOptions options = {.job = "mine", .rank = 3};
  EXPECT_EQ(PresetOf(options), "");
  for (const char* name :
       {"diloco", "streaming-diloco", "sparseloco", "post-local-sgd"}) {
    ASSERT_TRUE(ApplyPreset(name, options).ok()) << name;
    EXPECT_EQ(PresetOf(options), name);
    EXPECT_EQ(options.training.optimizer.name, "sgd");
    EXPECT_TRUE(
        ParseTransfers(options.settings.push_codec, options.settings.publish_codec, {})
            .ok());
    EXPECT_EQ(options.job, "mine");
    EXPECT_EQ(options.rank, 3u);
  }
  ASSERT_TRUE(ApplyPreset("diloco", options).ok());
  const OptionValues nesterov = {{"lr", 0.7}, {"momentum", 0.9}, {"nesterov", 1}};
  EXPECT_EQ(options.training.optimizer.values, nesterov);
  ASSERT_TRUE(ApplyPreset("sparseloco", options).ok());
  EXPECT_EQ(options.settings.push_codec, "sparseloco");
  const OptionValues plain = {{"lr", 1}};
  EXPECT_EQ(options.training.optimizer.values, plain) << "error feedback is its momentum";
  options.settings.push_codec = "int8";
  EXPECT_EQ(PresetOf(options), "") << "changed since";
}

TEST(Presets, UnknownNamesAreRefusedWithTheNearest) {
  SessionOptions options;
  EXPECT_THAT(std::string(ApplyPreset("sparseloko", options).message()),
              AllOf(HasSubstr("did you mean 'sparseloco'"), HasSubstr("diloco")));
  EXPECT_EQ(options.settings.push_codec, "bf16");
}

}  // namespace
}  // namespace syncline
