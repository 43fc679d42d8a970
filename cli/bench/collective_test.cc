#include "cli/bench/collective.h"

#include <array>
#include <string>
#include <vector>

#include "cli/app.h"
#include "cli/bench/bench.h"
#include "comm/base/exit_codes.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace syncline {
namespace {

constexpr std::array<AddCommand, 1> kCommands = {AddBench};

int RunBench(const std::vector<const char*>& flags) {
  std::vector<const char*> arguments = {"syncline", "bench", "collective"};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  return RunApp(arguments, kCommands);
}

TEST(BenchCollective, ChecksWhatItMeasures) {
  for (const char* op : {"all_reduce", "reduce_scatter", "all_to_all"}) {
    testing::internal::CaptureStdout();
    const int code =
        RunBench({"--op", op, "--ranks", "2", "--bytes", "1000000", "--json"});
    const std::string out = testing::internal::GetCapturedStdout();
    ASSERT_EQ(code, kExitDone) << op;
    const auto report = nlohmann::json::parse(out);
    ASSERT_EQ(report["rows"].size(), 1u);
    EXPECT_EQ(report["rows"][0]["wrong"], 0) << op;
    EXPECT_EQ(report["rows"][0]["size"], 1000000) << op;
    EXPECT_GT(report["rows"][0]["busbw_gbs"], 0) << op;
  }
}

TEST(BenchCollective, ChecksEveryReductionAndPairs) {
  for (const char* reduce : {"average", "max", "premultiplied_sum", "bitwise_and",
                             "bitwise_or", "bitwise_xor"}) {
    testing::internal::CaptureStdout();
    const int code =
        RunBench({"--reduce", reduce, "--ranks", "3", "--bytes", "100000", "--json"});
    const std::string out = testing::internal::GetCapturedStdout();
    ASSERT_EQ(code, kExitDone) << reduce << out;
    EXPECT_EQ(nlohmann::json::parse(out)["rows"][0]["wrong"], 0) << reduce;
  }
  EXPECT_EQ(RunBench({"--op", "all_to_all", "--algorithm", "pairwise", "--ranks", "3",
                      "--bytes", "100000"}),
            kExitDone);
  EXPECT_EQ(RunBench({"--reduce", "product"}), kExitUsage);
  EXPECT_EQ(RunBench({"--reduce", "max", "--op", "broadcast"}), kExitUsage);
}

// With small sizes, many operations make a round, and each batch of them is checked.
TEST(BenchCollective, SumsOfManyOperationsStayExact) {
  for (const char* ranks : {"1", "3"}) {
    testing::internal::CaptureStdout();
    const int code = RunBench({"--ranks", ranks, "--bytes", "100000", "--json"});
    const std::string out = testing::internal::GetCapturedStdout();
    ASSERT_EQ(code, kExitDone) << out;
    EXPECT_EQ(nlohmann::json::parse(out)["rows"][0]["wrong"], 0);
  }
}

TEST(BenchCollective, ChecksThatAllRanksHaveTheSameOfWhatTravelsEncoded) {
  testing::internal::CaptureStdout();
  const int code =
      RunBench({"--codec", "onebit", "--ranks", "3", "--bytes", "1M", "--json"});
  const std::string out = testing::internal::GetCapturedStdout();
  ASSERT_EQ(code, kExitDone) << out;
  const auto row = nlohmann::json::parse(out)["rows"][0];
  EXPECT_EQ(row["wrong"], 0);
  EXPECT_LT(row["sent_bytes"], 100000);
  EXPECT_GT(row["sent_bytes"], 10000);
}

// The exact sums of these values cannot be represented in FP32.
TEST(BenchCollective, SumsInTheExactOrderHaveTheSameBitsByEveryAlgorithm) {
  const auto bits_by = [](const std::vector<const char*>& more) {
    std::vector<const char*> flags = {"--ranks", "4",      "--bytes",
                                      "100000",  "--json", "--exact-order"};
    flags.insert(flags.end(), more.begin(), more.end());
    testing::internal::CaptureStdout();
    EXPECT_EQ(RunBench(flags), kExitDone);
    const auto report = nlohmann::json::parse(testing::internal::GetCapturedStdout());
    EXPECT_EQ(report["exact_order"], true);
    EXPECT_EQ(report["rows"][0]["wrong"], 0);
    return report["rows"][0]["bits"].get<std::string>();
  };
  const std::string bits = bits_by({});
  EXPECT_EQ(bits_by({"--algorithm", "ring"}), bits);
  EXPECT_EQ(bits_by({"--algorithm", "doubling"}), bits);
  EXPECT_EQ(bits_by({"--wire", "tcp-plain", "--hosts", "2"}), bits);
}

TEST(BenchCollective, RefusesWhatItCannotMeasure) {
  EXPECT_EQ(RunBench({"--codec", "onebitt"}), kExitUsage);
  EXPECT_EQ(RunBench({"--codec", "powersgd"}), kExitUsage);
  EXPECT_EQ(RunBench({"--hosts", "2"}), kExitUsage);
  EXPECT_EQ(RunBench({"--codec", "int8", "--op", "broadcast"}), kExitUsage);
  EXPECT_EQ(RunBench({"--op", "all_reduec"}), kExitUsage);
  EXPECT_EQ(RunBench({"--op", "send_receive"}), kExitUsage);
  EXPECT_EQ(RunBench({"--bytes", "many"}), kExitUsage);
  EXPECT_EQ(RunBench({"--bytes", "100..10"}), kExitUsage);
  EXPECT_EQ(RunBench({"--ranks", "0"}), kExitUsage);
  EXPECT_EQ(RunBench({"--algorithm", "bruck"}), kExitUsage);
  EXPECT_EQ(RunBench({"--algorithm", "halving", "--exact-order"}), kExitUsage);
  EXPECT_EQ(RunBench({"--codec", "int8", "--exact-order"}), kExitUsage);
}

}  // namespace
}  // namespace syncline
