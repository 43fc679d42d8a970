#include "worker/client/presets.h"

#include <string>

#include "comm/base/sync_mode.h"
#include "comm/compression/transfer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/client/job_request.h"

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
  ASSERT_TRUE(ApplyPreset("demo", options).ok());
  EXPECT_EQ(PresetOf(options), "demo");
  EXPECT_EQ(FormatNamedOptions(options.training.optimizer), "signsgd:lr=0.001");
  EXPECT_EQ(options.settings.push_codec, "demo");
  EXPECT_EQ(options.settings.publish_codec, "onebit");
}

TEST(Presets, ModesWithoutRoundsAreRefusedWithTheReason) {
  SessionOptions options;
  const auto said = [&](const char* mode) {
    options.training.mode = *ParseModeText(mode);
    return std::string(CheckSessionOptions(options).message());
  };
  EXPECT_EQ(said("asp"), "") << "no preset, no rounds";
  for (const char* name :
       {"diloco", "streaming-diloco", "sparseloco", "post-local-sgd"}) {
    ASSERT_TRUE(ApplyPreset(name, options).ok());
    EXPECT_THAT(said("asp:age_power=1"), AllOf(HasSubstr(name), HasSubstr("W times")));
    EXPECT_THAT(said("ssp:2"), HasSubstr("with mode=ssp:staleness=2, which lets a"));
    EXPECT_EQ(said("bsp"), "");
    EXPECT_EQ(said("bsp:quorum=1"), "");
    EXPECT_EQ(said("bsp:whole=1"), "");
  }
  options.training.optimizer = {.name = "adamw"};
  EXPECT_THAT(said("asp"), HasSubstr("preset=post-local-sgd")) << "its own optimizer";
  options.training.optimizer = {
      .name = "sgd",
      .values = {{"momentum", 0.9}, {"nesterov", 1}, {"momentum_every", 4}}};
  EXPECT_EQ(said("asp"), "") << "pushes are parts of outer steps";
  EXPECT_THAT(said("ssp:2"), HasSubstr("lets a worker go on"));
  ASSERT_TRUE(ApplyPreset("demo", options).ok());
  EXPECT_EQ(said("ssp:2"), "") << "it pushes gradients, not rounds";
}

TEST(Presets, UnknownNamesAreRefusedWithTheNearest) {
  SessionOptions options;
  EXPECT_THAT(std::string(ApplyPreset("sparseloko", options).message()),
              AllOf(HasSubstr("did you mean 'sparseloco'"), HasSubstr("diloco")));
  EXPECT_EQ(options.settings.push_codec, "bf16");
}

}  // namespace
}  // namespace syncline
