// Groups that read, measure and keep their costs.
#include "comm/collective/group/cost_agreement.h"

#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "comm/base/status.h"
#include "comm/base/temp_directory.h"
#include "comm/collective/group/group.h"
#include "comm/collective/group/members_test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline::collective {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct CostedMember {
  absl::Status status = {};
  Costs costs;
  std::string text;
  Algorithm choice = Algorithm::kDirect;  // of an all-reduce of 64 KiB
};

// Forms a group whose ranks have these settings, sums in it, and returns what each rank
// has seen.
std::vector<CostedMember> RunCosted(const Members& members,
                                    const std::vector<std::string>& settings) {
  MemoryStore store;
  std::vector<CostedMember> seen(settings.size());
  const auto run = [&](size_t rank) -> absl::Status {
    GroupOptions options = members.Options("costs", static_cast<int>(rank), &store);
    options.costs = settings[rank];
    SYNCLINE_ASSIGN_OR_RETURN(const auto group, Group::Create(options));
    std::vector<float> values(16 << 10, static_cast<float>(rank));
    const Call call = {.output = values.data(), .count = values.size()};
    seen[rank] = {.costs = group->costs(),
                  .text = group->DescribeCosts(),
                  .choice = group->Choose(call).algorithm};
    SYNCLINE_RETURN_IF_ERROR(group->Run(call));
    const auto sum = static_cast<float>(settings.size() * (settings.size() - 1) / 2);
    EXPECT_EQ(values, std::vector<float>(values.size(), sum));
    return absl::OkStatus();
  };
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < settings.size(); ++rank) {
    threads.emplace_back([&, rank] {
      const absl::Status status = run(rank);
      seen[rank].status = status;
    });
  }
  for (std::thread& thread : threads) thread.join();
  return seen;
}

std::vector<CostedMember> RunAlike(const Members& members, const std::string& setting) {
  return RunCosted(members,
                   std::vector<std::string>(static_cast<size_t>(members.ranks), setting));
}

std::string TextOf(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

void ExpectAllEqual(const std::vector<CostedMember>& seen) {
  for (const CostedMember& member : seen) {
    ASSERT_TRUE(member.status.ok()) << member.status;
    EXPECT_EQ(member.costs, seen[0].costs) << member.text << "\n" << seen[0].text;
    EXPECT_EQ(member.text, seen[0].text);
  }
}

constexpr Members kTwoHosts = {
    .ranks = 4, .per_host = 2, .security = TcpSecurity::kPlain};

TEST(CostAgreement, WithoutASettingCostsAreBuiltIn) {
  const auto seen = RunAlike(kTwoHosts, "");
  ExpectAllEqual(seen);
  EXPECT_EQ(seen[0].costs, Costs{});
  EXPECT_THAT(seen[0].text, HasSubstr("costs are built in"));
}

TEST(CostAgreement, AllRanksGetWhatOnePairOfEachClassMeasured) {
  const auto seen = RunAlike(kTwoHosts, "probe");
  ExpectAllEqual(seen);
  const Costs& costs = seen[0].costs;
  EXPECT_NE(costs.host, Costs{}.host);
  EXPECT_NE(costs.network, Costs{}.network);
  EXPECT_NE(costs.per_reduced_byte, Costs{}.per_reduced_byte);
  EXPECT_GT(costs.host.latency, 0);
  EXPECT_GT(costs.network.latency, 0);
  EXPECT_THAT(seen[0].text, HasSubstr("costs are measured"));
}

TEST(CostAgreement, ClassesThatAGroupDoesNotHaveAreNotMeasured) {
  const auto together = RunAlike({.ranks = 3}, "probe");
  ExpectAllEqual(together);
  EXPECT_EQ(together[0].costs.network, Costs{}.network);
  EXPECT_NE(together[0].costs.host, Costs{}.host);
  const auto apart =
      RunAlike({.ranks = 3, .per_host = 1, .security = TcpSecurity::kPlain}, "probe");
  ExpectAllEqual(apart);
  EXPECT_EQ(apart[0].costs.host, Costs{}.host);
  EXPECT_NE(apart[0].costs.network, Costs{}.network);
  const auto alone = RunAlike({.ranks = 1}, "probe");
  ExpectAllEqual(alone);
  EXPECT_EQ(alone[0].costs, Costs{});
}

// The pair on one host is neither rank 0 nor in its host.
TEST(CostAgreement, AnyPairMayMeasure) {
  const auto seen =
      RunAlike({.ranks = 3, .per_host = 2, .missing = 1, .security = TcpSecurity::kPlain},
               "probe");
  ExpectAllEqual(seen);
  EXPECT_NE(seen[0].costs.host, Costs{}.host);
  EXPECT_NE(seen[0].costs.network, Costs{}.network);
}

TEST(CostAgreement, AFileKeepsWhatWasMeasured) {
  const TempDirectory directory;
  const std::string path = directory.File("costs.json");
  const auto first = RunAlike(kTwoHosts, path);
  ExpectAllEqual(first);
  EXPECT_THAT(first[0].text, HasSubstr("costs are measured"));
  const std::string kept = TextOf(path);
  const auto second = RunAlike(kTwoHosts, path);
  ExpectAllEqual(second);
  EXPECT_EQ(second[0].costs, first[0].costs);
  EXPECT_THAT(second[0].text, HasSubstr("costs are those of a file"));
  EXPECT_EQ(TextOf(path), kept);
}

TEST(CostAgreement, AFileThatLacksAClassIsCompleted) {
  const TempDirectory directory;
  const std::string path = directory.File("costs.json");
  const LinkCost network = {.latency = 0.01, .per_message = 1e-5, .per_byte = 1e-7};
  ASSERT_TRUE(WriteCosts(path, {.network = network}).ok());
  const auto seen = RunAlike(kTwoHosts, path);
  ExpectAllEqual(seen);
  EXPECT_EQ(seen[0].costs.network, network);
  const auto kept = ReadCosts(path);
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_EQ(kept->network, network);
  EXPECT_EQ(kept->host, seen[0].costs.host);
  EXPECT_EQ(kept->per_reduced_byte, seen[0].costs.per_reduced_byte);
}

// Rank 0's file makes another algorithm fastest. Ranks that followed their own setting
// would call another one, which is an error.
TEST(CostAgreement, RankZeroDecidesForAll) {
  const TempDirectory directory;
  const std::string path = directory.File("costs.json");
  const KnownCosts slow = {
      .host = LinkCost{1e-6, 1e-7, 1e-10},
      .network = LinkCost{.latency = 1e-5, .per_message = 0.05, .per_byte = 1e-12},
      .per_reduced_byte = 1e-10};
  ASSERT_TRUE(WriteCosts(path, slow).ok());
  const Members hosts = {.ranks = 4, .per_host = 1, .security = TcpSecurity::kPlain};
  const auto built_in = RunAlike(hosts, "");
  const auto seen = RunCosted(hosts, {path, "", "probe", directory.File("other.json")});
  ExpectAllEqual(seen);
  EXPECT_EQ(seen[3].costs, slow.OrBuiltIn());
  EXPECT_EQ(built_in[3].choice, Algorithm::kDirect);
  EXPECT_EQ(seen[3].choice, Algorithm::kDoubling) << seen[3].text;
  EXPECT_EQ(TextOf(directory.File("other.json")), "");
}

TEST(CostAgreement, AllRanksHearOfABrokenFile) {
  const TempDirectory directory;
  const std::string path = directory.File("costs.json");
  std::ofstream(path) << R"({"version": 2})";
  for (const Members& members : {kTwoHosts, Members{.ranks = 3}}) {
    for (const CostedMember& member : RunAlike(members, path)) {
      EXPECT_TRUE(absl::IsInvalidArgument(member.status)) << member.status;
      EXPECT_THAT(std::string(member.status.message()),
                  AllOf(HasSubstr(path), HasSubstr("'version' must be 1")));
    }
  }
}

TEST(CostAgreement, AllRanksHearOfAFileThatCannotBeWritten) {
  const TempDirectory directory;
  for (const CostedMember& member :
       RunAlike(kTwoHosts, directory.File("missing/costs.json"))) {
    EXPECT_TRUE(absl::IsInvalidArgument(member.status)) << member.status;
    EXPECT_THAT(std::string(member.status.message()),
                HasSubstr("cannot write the measured costs to"));
  }
}

}  // namespace
}  // namespace syncline::collective
