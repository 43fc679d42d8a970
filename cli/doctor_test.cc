#include "cli/doctor.h"

#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "absl/cleanup/cleanup.h"
#include "cli/checks.h"
#include "cli/version.h"
#include "comm/base/temp_directory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace syncline {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr uint64_t kGiB = uint64_t{1} << 30;

TEST(Checks, WarnOfASlowInstructionSet) {
  EXPECT_EQ(JudgeCpu({2, "x86-64-v4", 9.5}).result, Check::kOk);
  EXPECT_THAT(JudgeCpu({2, "x86-64-v4", 9.5}).finding, HasSubstr("9.5 GB/s"));
  EXPECT_EQ(JudgeCpu({2, "x86-64-v2", 9.5}).result, Check::kWarn);
  EXPECT_EQ(JudgeCpu({2, "arm64", 9.5}).result, Check::kOk);
}

TEST(Checks, WarnOfDockersSmallSharedMemory) {
  EXPECT_EQ(JudgeSharedMemory(kGiB, kGiB).result, Check::kOk);
  EXPECT_EQ(JudgeSharedMemory(kGiB / 16, kGiB / 16).result, Check::kWarn);
  EXPECT_EQ(JudgeSharedMemory(kGiB, 1000).result, Check::kWarn);
}

TEST(Checks, NeedMemlockOnlyForRdma) {
  EXPECT_EQ(JudgeMemlock(65536, {}).result, Check::kOk);
  EXPECT_EQ(JudgeMemlock(65536, {"mlx5_0"}).result, Check::kFail);
  EXPECT_EQ(JudgeMemlock(RLIM_INFINITY, {"mlx5_0"}).result, Check::kOk);
}

TEST(Checks, WarnWhenPeersOfOneHostDoNotShareMemory) {
  EXPECT_EQ(JudgeUcx("1.13.1", "", "sysv/memory cma/memory").result, Check::kOk);
  EXPECT_EQ(JudgeUcx("1.13.1", "", "tcp/lo").result, Check::kWarn);
}

TEST(Checks, SayWhichCollectiveAlgorithmsAreChosenAndWhy) {
  const Check built_in = JudgeCollectives("");
  EXPECT_EQ(built_in.result, Check::kOk);
  EXPECT_THAT(built_in.finding, HasSubstr("costs are built in"));
  EXPECT_THAT(built_in.finding, HasSubstr("SYNCLINE_GROUP_COSTS=probe measures them"));
  EXPECT_THAT(built_in.finding, HasSubstr("16 hosts: all_reduce of 8 B by doubling: "));
  EXPECT_THAT(JudgeCollectives("probe").finding, HasSubstr("as it forms"));
  const TempDirectory directory;
  const std::string path = directory.File("costs.json");
  EXPECT_THAT(JudgeCollectives(path).finding, HasSubstr("as it forms"));
  std::ofstream(path) << R"({"version": 1, "per_reduced_byte_s": 1e-10,
      "host": {"latency_s": 1e-6, "per_message_s": 1e-6, "per_byte_s": 1e-10},
      "network": {"latency_s": 1e-9, "per_message_s": 1e-9, "per_byte_s": 1e-6}})";
  const Check kept = JudgeCollectives(path);
  EXPECT_THAT(kept.finding, HasSubstr("costs are those of a file"));
  EXPECT_THAT(kept.finding, HasSubstr("64 KiB by halving: "));
  EXPECT_THAT(kept.finding, Not(HasSubstr("measure")));
  std::ofstream(path) << "{}";
  const Check broken = JudgeCollectives(path);
  EXPECT_EQ(broken.result, Check::kFail);
  EXPECT_THAT(broken.finding, HasSubstr("'version' must be 1"));
  EXPECT_THAT(broken.fix, HasSubstr("SYNCLINE_GROUP_COSTS names that file"));
}

TEST(Checks, SayWhichDataPlaneIsUsedAndWhy) {
  const Check fine = JudgeDataPlane({"posix/memory", "OpenSSL 3.0.19"});
  EXPECT_EQ(fine.result, Check::kOk);
  EXPECT_EQ(fine.finding,
            "auto: in this host shared memory (posix/memory), as it is fastest; to other "
            "hosts TLS 1.3 (OpenSSL 3.0.19), as it is sealed");
  const Check slow = JudgeDataPlane({"tcp/lo", "OpenSSL 3.0.19"});
  EXPECT_EQ(slow.result, Check::kWarn);
  EXPECT_THAT(slow.fix, HasSubstr("unset the UCX_* variables"));
  const Check full =
      JudgeDataPlane({absl::ResourceExhaustedError("/dev/shm is full"), "OpenSSL 3"});
  EXPECT_EQ(full.result, Check::kWarn);
  EXPECT_THAT(full.fix, HasSubstr("/dev/shm is full; or give"));
  const Check closed =
      JudgeDataPlane({"posix/memory", absl::UnavailableError("no handshake")});
  EXPECT_EQ(closed.result, Check::kFail);
  EXPECT_EQ(closed.fix, "no handshake");
}

// The checks may fail on this machine; only their texts are tested.
TEST(Checks, SayWhatTheyFoundHereAndHowToMendIt) {
  EXPECT_THAT(RunChecks(), Not(testing::IsEmpty()));
  for (const Check& check : RunChecks()) {
    EXPECT_FALSE(check.finding.empty()) << check.name;
    EXPECT_EQ(check.result <= Check::kOk, check.fix.empty()) << check.name;
  }
}

TEST(Checks, SayThatUcxTlsOpensNothingInsideAHost) {
  setenv("UCX_TLS", "all", 1);
  const absl::Cleanup unset = [] { unsetenv("UCX_TLS"); };
  const std::vector<Check> checks = RunChecks();
  const auto ucx = std::find_if(checks.begin(), checks.end(),
                                [](const Check& check) { return check.name == "ucx"; });
  ASSERT_NE(ucx, checks.end());
  EXPECT_THAT(ucx->finding, testing::ContainsRegex("on this host over (posix|sysv)"));
  EXPECT_THAT(ucx->finding, HasSubstr("of UCX_TLS=all only shared memory"));
}

TEST(Doctor, BreaksWhatIsLongBelowItself) {
  const std::vector<Check> checks = {
      {"nccl", Check::kWarn, "no NCCL: no such file", "install the library libnccl"}};
  EXPECT_EQ(ChecksAsTable(checks, 42),
            "warn  nccl           no NCCL: no such file\n"
            "                     fix: install the\n"
            "                     library libnccl\n");
}

TEST(Doctor, PrintsAFixOnlyWhereOneIsNeeded) {
  const std::vector<Check> checks = {{"cpu", Check::kOk, "fine", ""},
                                     {"clock", Check::kWarn, "wrong", "set it"}};
  EXPECT_EQ(ChecksAsTable(checks),
            "ok    cpu            fine\n"
            "warn  clock          wrong\n"
            "                     fix: set it\n");
  const auto json = nlohmann::json::parse(ChecksAsJson(checks));
  EXPECT_EQ(json["result"], "warn");
  EXPECT_EQ(json["checks"][1]["fix"], "set it");
}

TEST(Version, KnowsItsLibraries) {
  const BuildInfo info = GetBuildInfo();
  EXPECT_THAT(info.version, testing::MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+"));
  EXPECT_THAT(info.libraries, Not(testing::IsEmpty()));
  EXPECT_THAT(info.git, Not(testing::IsEmpty()));
  EXPECT_GE(info.wire_version, 1);
  for (const auto& [name, version] : info.libraries) {
    EXPECT_THAT(version, testing::MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+.*")) << name;
  }
}

}  // namespace
}  // namespace syncline
