#include "cli/bench/kernel.h"

#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "cli/app.h"
#include "cli/bench/bench.h"
#include "comm/base/exit_codes.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

constexpr std::array<AddCommand, 1> kCommands = {AddBench};

struct Ran {
  int code = 0;
  std::string out = {};
  std::string err = {};
};

Ran RunBench(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), {"syncline", "bench"});
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  Ran ran;
  ran.code = RunApp(arguments, kCommands);
  ran.out = testing::internal::GetCapturedStdout();
  ran.err = testing::internal::GetCapturedStderr();
  return ran;
}

Json Report(std::vector<const char*> arguments) {
  arguments.insert(arguments.end(), {"--warmup=1", "--rounds=2", "--json"});
  const Ran ran = RunBench(std::move(arguments));
  EXPECT_EQ(ran.code, kExitDone) << ran.err;
  return Json::parse(ran.out, nullptr, false);
}

TEST(BenchOptimizer, ReportsAllFieldsAndChecksTheWeights) {
  const Json report = Report({"optimizer", "--params=100000", "--threads=2"});
  EXPECT_EQ(report["bench"], "optimizer");
  for (const char* field : {"ns_per_param", "bandwidth_gbs", "copy_gbs", "of_copy"}) {
    EXPECT_GT(report[field].get<double>(), 0) << field;
  }
  for (const char* field : {"median", "p10", "p90"}) {
    EXPECT_GT(report["seconds"][field].get<double>(), 0) << field;
  }
  EXPECT_GE(report["machine"]["cores"].get<int>(), 1);
  EXPECT_EQ(report["settings"]["params"], 100352) << "2 x 49 rows of 1024";
  EXPECT_EQ(report["verified"], "float64");
}

TEST(BenchOptimizer, CountsBytesThatOneUpdateMoves) {
  const auto bytes = [](std::vector<const char*> arguments) {
    arguments.insert(arguments.begin(), {"optimizer", "--params=8192"});
    return Report(std::move(arguments))["bytes_per_param"].get<double>();
  };
  EXPECT_EQ(bytes({"--name=adamw"}), 28);
  EXPECT_EQ(bytes({"--name=sgd"}), 12);
  EXPECT_EQ(bytes({"--name=sgd", "--option=momentum=0.9"}), 20);
  EXPECT_EQ(bytes({"--name=adam", "--out=bf16"}), 30);
  EXPECT_EQ(bytes({"--name=adamw", "--state=bf16"}), 20);
  EXPECT_DOUBLE_EQ(bytes({"--name=adamw", "--state=int8"}), 12 + 4 * 260.0 / 256);
}

TEST(BenchOptimizer, RunsAndChecksEveryOptimizer) {
  for (const std::string_view name : OptimizerNames()) {
    const std::string flag = "--name=" + std::string(name);
    const Json report = Report({"optimizer", "--params=5000", flag.c_str()});
    EXPECT_TRUE(report.contains("verified")) << name;
  }
}

TEST(BenchOptimizer, RefusesWhatItDoesNotKnow) {
  const Ran unknown = RunBench({"optimizer", "--name", "adamwx"});
  EXPECT_EQ(unknown.code, kExitUsage);
  EXPECT_THAT(unknown.err, HasSubstr("did you mean 'adamw'?"));
  EXPECT_EQ(RunBench({"optimizer", "--option", "beta3=1"}).code, kExitUsage);
  EXPECT_EQ(RunBench({"optimizer", "--option", "beta1"}).code, kExitUsage);
  EXPECT_EQ(RunBench({"optimizer", "--state", "int4"}).code, kExitUsage);
  EXPECT_EQ(RunBench({"optimizer", "--out", "fp8"}).code, kExitUsage);
  EXPECT_EQ(RunBench({"optimizer", "--params", "0"}).code, kExitUsage);
  EXPECT_EQ(RunBench({"optimizer", "--threads", "0"}).code, kExitUsage);
  EXPECT_EQ(RunBench({"optimizer", "--rounds", "0"}).code, kExitUsage);
}

TEST(BenchOptimizer, SaysHowMuchMemoryIsMissing) {
  const Ran ran = RunBench({"optimizer", "--params", "1000000000000"});
  EXPECT_EQ(ran.code, kExitFatal);
  EXPECT_THAT(ran.err, HasSubstr("choose fewer --params"));
}

TEST(BenchAggregate, ReportsItsFloor) {
  const Json report =
      Report({"aggregate", "--params=1200000", "--workers=3", "--threads=2"});
  EXPECT_EQ(report["bench"], "aggregate");
  EXPECT_EQ(report["floor_bytes_per_param"], 3 * 2 + 24 + 2);
  EXPECT_GT(report["floor_seconds"].get<double>(), 0);
  EXPECT_GT(report["over_floor"].get<double>(), 0);
  EXPECT_EQ(report["verified"], "float64");
}

TEST(BenchAggregate, StepsWholeTensorsAndJobWideFiguresToo) {
  for (const char* optimizer : {"--optimizer=lamb", "--optimizer=lbfgs"}) {
    const Json report =
        Report({"aggregate", "--params=70000", "--dtype=fp32", "--out=fp32", optimizer});
    EXPECT_EQ(report["verified"], "finite") << optimizer;
  }
}

TEST(BenchAggregate, RefusesUnknownWiresAndNobodyAtWork) {
  EXPECT_EQ(RunBench({"aggregate", "--dtype", "bf61"}).code, kExitUsage);
  EXPECT_EQ(RunBench({"aggregate", "--workers", "0"}).code, kExitUsage);
}

// ---- Tests of the checks themselves ----

class CheckResultTest : public testing::Test {
 protected:
  // Checks two steps of one million weights, with gradient 0.25 everywhere.
  absl::StatusOr<std::string> Check(const std::string& optimizer,
                                    std::function<float(uint64_t)> weight) {
    KernelBenchOptions options;
    options.optimizer = optimizer;
    const auto bench = PrepareKernelBench(options, codecs_);
    return CheckResult(*bench, {.elements = 1'000'000,
                                .steps = 2,
                                .gradient = [](uint64_t) { return 0.25; },
                                .weight = std::move(weight)});
  }

  const CodecRegistry codecs_ = CodecRegistry::Builtin();
};

TEST_F(CheckResultTest, AcceptsWhatSgdDoes) {
  const auto right = [](uint64_t i) { return BenchWeight(i) - 2 * 1e-3f * 0.25f; };
  EXPECT_EQ(*Check("sgd", right), "float64");
}

TEST_F(CheckResultTest, RefusesWrongWeights) {
  const auto skipped = [](uint64_t i) { return BenchWeight(i) - 1e-3f * 0.25f; };
  EXPECT_EQ(Check("sgd", skipped).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(Check("lion", skipped).status().code(), absl::StatusCode::kDataLoss);
  const auto nan = [](uint64_t i) { return i == 999'999 ? NAN : 1.0f; };
  EXPECT_EQ(Check("lamb", nan).status().code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace syncline
