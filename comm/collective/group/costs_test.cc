#include "comm/collective/group/costs.h"

#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "comm/base/temp_directory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline::collective {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Thirds have no short decimal form.
constexpr KnownCosts kAll = {.host = LinkCost{1e-6 / 3, 2e-6 / 3, 1e-10 / 3},
                             .network = LinkCost{1e-3 / 3, 1e-5 / 3, 1e-8 / 3},
                             .per_reduced_byte = 1e-10 / 3};

std::string MessageOf(const std::string& json) {
  const auto costs = ParseCosts(json);
  EXPECT_TRUE(absl::IsInvalidArgument(costs.status())) << json;
  return std::string(costs.status().message());
}

TEST(Costs, AreReadBackWithTheSameBits) {
  const TempDirectory directory;
  const std::string path = directory.File("costs.json");
  for (const KnownCosts& costs :
       {kAll, KnownCosts{}, KnownCosts{.host = kAll.host},
        KnownCosts{.network = kAll.network, .per_reduced_byte = 0.0}}) {
    ASSERT_TRUE(WriteCosts(path, costs).ok());
    const auto read = ReadCosts(path);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(*read, costs) << FormatCosts(costs);
  }
  EXPECT_EQ(*ReadCosts(directory.File("missing.json")), KnownCosts{});
}

TEST(Costs, SayWhatIsWrongWithAFile) {
  EXPECT_THAT(MessageOf("{"), HasSubstr("not a JSON object"));
  EXPECT_THAT(MessageOf("[1]"), HasSubstr("not a JSON object"));
  EXPECT_THAT(MessageOf(R"({"host": {}})"), HasSubstr("'version' must be 1"));
  EXPECT_THAT(MessageOf(R"({"version": 1, "numa": {}})"),
              HasSubstr("'numa' is unknown: there are version, host"));
  EXPECT_THAT(MessageOf(R"({"version": 1, "host": {"latency_s": 1}})"),
              HasSubstr("'host' must have latency_s, per_message_s and per_byte_s"));
  EXPECT_THAT(
      MessageOf(
          R"({"version": 1, "host": {"latency_s": 1, "per_message_s": 1, "b": 1}})"),
      HasSubstr("'host.per_byte_s' is missing"));
  for (const char* const value : {"-1", "61", "\"fast\"", "null", "1e999"}) {
    const std::string json =
        absl::StrCat(R"({"version": 1, "per_reduced_byte_s": )", value, "}");
    EXPECT_FALSE(ParseCosts(json).ok()) << json;
  }
  EXPECT_THAT(MessageOf(R"({"version": 1, "per_reduced_byte_s": -1})"),
              HasSubstr("'per_reduced_byte_s' is -1, but must be a number of seconds"));
}

TEST(Costs, NameTheFileThatCannotBeUsed) {
  const TempDirectory directory;
  const std::string broken = directory.File("broken.json");
  std::ofstream(broken) << "{}";
  EXPECT_THAT(std::string(ReadCosts(broken).status().message()),
              AllOf(HasSubstr(broken), HasSubstr("'version' must be 1"),
                    HasSubstr("mend it, or delete it")));
  const std::string large = directory.File("large.json");
  std::ofstream(large) << std::string(70'000, ' ');
  EXPECT_THAT(std::string(ReadCosts(large).status().message()), HasSubstr("too long"));
  EXPECT_THAT(std::string(ReadCosts(directory.path()).status().message()),
              HasSubstr("cannot be read"));
  EXPECT_THAT(
      std::string(WriteCosts(directory.File("no/folder.json"), KnownCosts{}).message()),
      AllOf(HasSubstr("no/folder.json"), HasSubstr("rank 0 may write")));
}

TEST(Costs, AreDescribedWithTheChoicesThatFollow) {
  const Topology host = {.hosts = 1};
  EXPECT_THAT(DescribeCostsOf(host, CostSource::kBuiltIn),
              AllOf(HasSubstr("costs are built in: within a host 0.6 us"),
                    Not(HasSubstr("25 us"))));
  EXPECT_THAT(DescribeChoices({.ranks = 4}, host),
              AllOf(HasSubstr("8 B by the board"), HasSubstr("64 MiB by direct: ")));
  const Topology hosts = {.hosts = 16};
  EXPECT_THAT(DescribeCostsOf(hosts, CostSource::kMeasured),
              AllOf(HasSubstr("costs are measured"),
                    HasSubstr("between hosts 25 us, 5 us a message, 10 Gbit/s")));
  EXPECT_THAT(DescribeChoices({.ranks = 16}, hosts),
              AllOf(HasSubstr("8 B by doubling: "), HasSubstr(" (next ")));
}

}  // namespace
}  // namespace syncline::collective
