#include "comm/base/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace syncline {
namespace {

using ::testing::HasSubstr;

constexpr std::array kSpecs = {
    OptionSpec{.name = "lr", .standard = 1e-3, .least = 0, .most = 10},
    OptionSpec{.name = "beta1", .standard = 0.9, .most = 1, .bound = Bound::kExcluded},
    OptionSpec{.name = "steps",
               .standard = 5,
               .least = 1,
               .most = 9,
               .kind = OptionKind::kWhole},
    OptionSpec{.name = "nesterov", .kind = OptionKind::kFlag}};

std::string Error(const OptionValues& values) {
  return std::string(ValidateOptions("optimizer 'x'", kSpecs, values).message());
}

TEST(Options, TakeWhatIsInRange) {
  EXPECT_EQ(Error({}), "");
  EXPECT_EQ(Error({{"lr", 0}, {"beta1", 0}, {"steps", 9}, {"nesterov", 1}}), "");
  EXPECT_EQ(Error({{"lr", 10}}), "");
}

TEST(Options, SayWhatIsAllowed) {
  EXPECT_EQ(Error({{"lr", -1}}), "optimizer 'x': lr is -1, but must be in [0, 10]");
  EXPECT_EQ(Error({{"beta1", 1}}), "optimizer 'x': beta1 is 1, but must be in [0, 1)");
  EXPECT_THAT(Error({{"steps", 1.5}}), HasSubstr("a whole number in [1, 9]"));
  EXPECT_THAT(Error({{"nesterov", 0.5}}), HasSubstr("0 or 1"));
}

TEST(Options, RefuseWhatIsNotFinite) {
  EXPECT_THAT(Error({{"lr", std::nan("")}}), HasSubstr("lr is nan"));
  EXPECT_THAT(Error({{"lr", std::numeric_limits<double>::infinity()}}),
              HasSubstr("lr is inf"));
}

TEST(Options, NameTheNearestOfAnUnknownOne) {
  EXPECT_EQ(Error({{"beta", 0.5}}),
            "optimizer 'x' has no option 'beta'; did you mean 'beta1'?");
  EXPECT_THAT(Error({{"checkpoint_every", 500}}),
              HasSubstr("has no option 'checkpoint_every'; it has lr, "));
}

TEST(Options, HaveDefaults) {
  EXPECT_EQ(OptionOr(kSpecs, {}, "beta1"), 0.9);
  EXPECT_EQ(OptionOr(kSpecs, {{"beta1", 0.5}}, "beta1"), 0.5);
}

TEST(Options, AreParsedFromAssignments) {
  const std::vector<std::string> good = {"beta1=0.5", "lr=1e-3"};
  EXPECT_EQ(*ParseOptions(good), (OptionValues{{"beta1", 0.5}, {"lr", 1e-3}}));
  for (const std::string bad : {"beta1", "=1", "beta1=", "beta1=x", ""}) {
    const auto parsed = ParseOptions(std::span(&bad, 1));
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr("'" + bad + "'"));
  }
}

TEST(Options, ThatAreNoneSayWhatIsMissing) {
  const std::pair<const char*, const char*> wrong[] = {
      {"ssp:3", "write NAME=3"},
      {"ssp:staleness", "write staleness=NUMBER"},
      {"asp:age_power=x", "'x' is not a number"},
      {"asp:=1", "it has no name"}};
  for (const auto& [choice, why] : wrong) {
    EXPECT_THAT(std::string(ParseNamedOptions(choice).status().message()),
                HasSubstr(why));
  }
}

TEST(Options, ThatAreTheDefaultsAnywayCanBeLeftOut) {
  EXPECT_EQ(WithoutDefaults(kSpecs, {{"lr", 1e-3}, {"beta1", 0.5}, {"nesterov", 0}}),
            (OptionValues{{"beta1", 0.5}}));
}

TEST(Options, MergePrefersTheChange) {
  EXPECT_EQ(Merge({{"a", 1}, {"b", 2}}, {{"b", 3}, {"c", 4}}),
            (OptionValues{{"a", 1}, {"b", 3}, {"c", 4}}));
}

TEST(NamedOptions, AreOneStringThatReadsBackAsItWas) {
  for (const char* choice : {"adamw:beta2=0.95,lr=0.001", "constant", "", "x:a=1e-300"}) {
    const auto parsed = ParseNamedOptions(choice);
    ASSERT_TRUE(parsed.ok()) << choice;
    EXPECT_EQ(FormatNamedOptions(*parsed), choice);
  }
  const NamedOptions third{.name = "x", .values = {{"lr", 1.0 / 3}, {"inf", INFINITY}}};
  EXPECT_EQ(*ParseNamedOptions(FormatNamedOptions(third)), third);
  EXPECT_EQ(ParseNamedOptions("adamw:lr=1e-3")->values.at("lr"), 1e-3);
}

TEST(NamedOptions, NameWhatIsNoOption) {
  for (const char* choice : {"adamw:lr", "adamw:lr=fast", "adamw:=1", "adamw:lr=1,"}) {
    EXPECT_FALSE(ParseNamedOptions(choice).ok()) << choice;
  }
  EXPECT_THAT(std::string(ParseOptionList("lr=1,beta").status().message()),
              HasSubstr("'beta' is not an option"));
}

}  // namespace
}  // namespace syncline
