#include "comm/base/sync_mode.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/base/limits.h"

namespace syncline {
namespace {

using ::testing::AllOf;
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

TEST(LocalAggregation, IsForStepsOfAllHosts) {
  for (const char* mode : {"", "bsp", "bsp:whole=1", "bsp:whole=0"}) {
    EXPECT_TRUE(CheckLocalAggregation(*ParseModeText(mode)).ok()) << mode;
  }
  for (const char* mode : {"bsp:quorum=1", "bsp:quorum=16384", "ssp:0", "ssp:2", "asp"}) {
    EXPECT_THAT(std::string(CheckLocalAggregation(*ParseModeText(mode)).message()),
                HasSubstr("local aggregation needs bsp without a quorum"))
        << mode;
  }
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

TEST(ModeText, SaysWhatIsAllowedWithAnExample) {
  const auto said = [](const char* text) {
    const auto named = ParseModeText(text);
    const auto parsed = named.ok() ? ParseSyncMode(*named) : named.status();
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument) << text;
    return std::string(parsed.status().message());
  };
  for (const char* text : {"ssp:x", "ssp:-1", "ssp:99999999999", "ssp:staleness=-1"}) {
    EXPECT_THAT(said(text), AllOf(HasSubstr("staleness is "),
                                  HasSubstr("must be a whole number in [0, 64]; such as "
                                            "ssp:3")))
        << text;
  }
  EXPECT_THAT(said("ssp:x"), HasSubstr("staleness is 'x'"));
  EXPECT_THAT(said("bsp:quorum=0"), HasSubstr("; such as bsp or bsp:quorum=3"));
  EXPECT_THAT(said("asp:1"), HasSubstr("; such as asp or asp:age_power=1"));
  EXPECT_THAT(said("slow"),
              HasSubstr("only bsp, ssp and asp, in lower case; such as bsp, "));
  for (const char* text : {"SSP:4", "SSP", "spp:3"}) {
    EXPECT_THAT(said(text), HasSubstr("in lower case; did you mean 'ssp'?")) << text;
  }
}

TEST(ModeText, CorrectsADelayInOneWayOnly) {
  EXPECT_EQ(ParseSyncMode(*ParseModeText("asp:view_ahead=0.5"))->view_ahead, 0.5);
  EXPECT_THAT(
      std::string(ParseSyncMode(*ParseModeText("asp:view_ahead=0.5,compensation=1"))
                      .status()
                      .message()),
      HasSubstr("correct the same delay"));
  EXPECT_FALSE(ParseSyncMode(*ParseModeText("asp:view_ahead=-1")).ok());
}

TEST(SyncMode, WholeIsAQuorumOfAllMembersHoweverMany) {
  const auto mode = ParseSyncMode(*ParseModeText("bsp:whole=1"));
  ASSERT_TRUE(mode.ok()) << mode.status();
  EXPECT_TRUE(mode->has_quorum() && !mode->has_delays());
  EXPECT_EQ(mode->quorum, kMaxWorkers);
  EXPECT_TRUE(mode->is_whole);
  EXPECT_FALSE(ParseSyncMode(*ParseModeText("bsp:quorum=16384"))->is_whole)
      << "everybody where there are so many";
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
