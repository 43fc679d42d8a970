#include "comm/base/sync_mode.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/base/limits.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;

TEST(ModeText, TakesANumberAloneForTheStaleness) {
  for (const char* text : {"ssp:4", "ssp:staleness=4"}) {
    const auto named = ParseModeText(text);
    ASSERT_TRUE(named.ok()) << named.status();
    EXPECT_EQ(ParseSyncMode(*named)->kind, SyncMode::Kind::kSsp) << text;
    EXPECT_EQ(ParseSyncMode(*named)->staleness, 4u) << text;
    EXPECT_EQ(FormatNamedOptions(*named), "ssp:staleness=4") << "jobs compare equal";
  }
  EXPECT_EQ(*ParseModeText("ssp:0"), (NamedOptions{"ssp", {{"staleness", 0}}}));
  EXPECT_EQ(ParseModeText("ssp")->values.size(), 0u);
  EXPECT_EQ(ParseModeText("bsp:quorum=3,grace_ms=20")->values.size(), 2u);
}

TEST(ModeText, TakesNoOtherNumberWithoutAName) {
  for (const char* text : {"bsp:3", "asp:1", "ssp:4,5", "ssp:x", "ssp:"}) {
    const auto named = ParseModeText(text);
    EXPECT_FALSE(named.ok() && !named->values.empty()) << text;
  }
  EXPECT_THAT(std::string(ParseModeText("bsp:3").status().message()),
              HasSubstr("it has no name; write NAME=3"));
  for (const char* text : {"ssp:65", "ssp:-1", "ssp:1.5", "ssp:nan"}) {
    EXPECT_THAT(std::string(ParseSyncMode(*ParseModeText(text)).status().message()),
                HasSubstr("must be a whole number in [0, 64]"))
        << text;
  }
}

TEST(SyncMode, WholeIsAQuorumOfAllMembersHoweverMany) {
  const auto mode = ParseSyncMode(*ParseModeText("bsp:whole=1"));
  ASSERT_TRUE(mode.ok()) << mode.status();
  EXPECT_TRUE(mode->has_quorum() && !mode->has_delays());
  EXPECT_EQ(mode->quorum, kMaxWorkers);
  EXPECT_FALSE(ParseSyncMode(*ParseModeText("bsp:whole=0"))->has_quorum());
  EXPECT_THAT(
      std::string(
          ParseSyncMode(*ParseModeText("bsp:whole=1,quorum=2")).status().message()),
      HasSubstr("say bsp:quorum=K or bsp:whole=1"));
  EXPECT_FALSE(ParseSyncMode(*ParseModeText("bsp:whole=2")).ok());
  EXPECT_FALSE(ParseSyncMode(*ParseModeText("bsp:whole=1,grace_ms=3")).ok());
}

}  // namespace
}  // namespace syncline
