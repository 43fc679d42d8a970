#include "cli/bench/codec.h"

#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "cli/app.h"
#include "cli/bench/bench.h"
#include "cli/bench/coded_tensor.h"
#include "comm/base/exit_codes.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

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

Ran RunCodec(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), {"syncline", "bench", "codec"});
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  Ran ran;
  ran.code = RunApp(arguments, kCommands);
  ran.out = testing::internal::GetCapturedStdout();
  ran.err = testing::internal::GetCapturedStderr();
  return ran;
}

Json Report(std::vector<const char*> arguments) {
  arguments.insert(arguments.end(), {"--warmup=1", "--rounds=4", "--json"});
  const Ran ran = RunCodec(std::move(arguments));
  EXPECT_EQ(ran.code, kExitDone) << ran.err;
  return Json::parse(ran.out, nullptr, false);
}

TEST(BenchCodec, ReportsAllFieldsAndChecksTheSum) {
  const Json report =
      Report({"--name=topk", "--ratio=0.01", "--elements=200000", "--threads=2"});
  EXPECT_EQ(report["bench"], "codec");
  for (const char* field :
       {"encode_ns_per_element", "parse_ns_per_element", "decode_ns_per_element",
        "encode_gbs", "parse_gbs", "decode_gbs", "copy_gbs", "wire_bytes", "ratio"}) {
    EXPECT_GT(report[field].get<double>(), 0) << field;
  }
  for (const char* part :
       {"seconds", "encode_seconds", "parse_seconds", "decode_seconds"}) {
    for (const char* field : {"median", "p10", "p90"}) {
      EXPECT_GT(report[part][field].get<double>(), 0) << part << " " << field;
    }
  }
  EXPECT_GE(report["machine"]["cores"].get<int>(), 1);
  EXPECT_EQ(report["settings"]["elements"], 200704) << "2 x 98 rows of 1024";
  EXPECT_EQ(report["settings"]["memory"], "ef");
  EXPECT_EQ(report["verified"], "sum");
}

TEST(BenchCodec, CountsHeadersAndPaddingOfTheFrames) {
  const Json report = Report({"--name=bf16", "--elements=132096"});
  // Two full tiles and one of 1024 elements, 64 bytes of header each.
  EXPECT_EQ(report["wire_bytes"], 132096 * 2 + 3 * 64);
  EXPECT_DOUBLE_EQ(report["ratio"].get<double>(), 132096 * 4.0 / (132096 * 2 + 3 * 64));
}

TEST(BenchCodec, AddsTheRatioToTheName) {
  const Json few = Report({"--name=topk", "--ratio=0.001", "--elements=65536"});
  const Json many =
      Report({"--name=topk:values=bf16", "--ratio=0.1", "--elements=65536"});
  EXPECT_EQ(few["settings"]["codec"], "topk:ratio=0.001");
  EXPECT_EQ(many["settings"]["codec"], "topk:ratio=0.1,values=bf16");
  EXPECT_GT(few["ratio"].get<double>(), 300);
  EXPECT_LT(many["ratio"].get<double>(), 20);
}

TEST(BenchCodec, RunsAndChecksEveryCodec) {
  for (const TransferPreset& preset : TransferPresets()) {
    const std::string flag = "--name=" + std::string(preset.name);
    const Json report = Report({"--elements=70000", flag.c_str()});
    EXPECT_TRUE(report.contains("verified")) << flag;
  }
}

TEST(BenchCodec, ChecksEachMemoryInItsWay) {
  const auto verified = [](const char* name) {
    return Report({"--elements=70000", name})["verified"];
  };
  EXPECT_EQ(verified("--name=onebit"), "sum");
  EXPECT_EQ(verified("--name=onebit:decay=0.5"), "replay");
  EXPECT_EQ(verified("--name=dgc:ratio=0.05"), "replay");
  EXPECT_EQ(verified("--name=dgc:ratio=0.05,nesterov=1"), "replay");
  EXPECT_EQ(verified("--name=int8-stochastic"), "traits");
  EXPECT_EQ(verified("--name=fp32"), "traits");
  EXPECT_EQ(verified("--name=signsgd"), "finite");
}

TEST(BenchCodec, RefusesWhatItDoesNotKnow) {
  const Ran unknown = RunCodec({"--name", "onebitt"});
  EXPECT_EQ(unknown.code, kExitUsage);
  EXPECT_THAT(unknown.err, HasSubstr("did you mean 'onebit'?"));
  const Ran ratio = RunCodec({"--name", "onebit", "--ratio", "0.1"});
  EXPECT_EQ(ratio.code, kExitUsage);
  EXPECT_THAT(ratio.err, HasSubstr("has no option 'ratio'"));
  EXPECT_EQ(RunCodec({"--name", "topk", "--ratio", "2"}).code, kExitUsage);
  EXPECT_EQ(RunCodec({"--elements", "0"}).code, kExitUsage);
  EXPECT_EQ(RunCodec({"--threads", "0"}).code, kExitUsage);
  EXPECT_EQ(RunCodec({"--warmup", "-1"}).code, kExitUsage);
  EXPECT_EQ(RunCodec({"--rounds", "0"}).code, kExitUsage);
}

TEST(BenchCodec, SaysThatMemoryIsMissing) {
  const Ran ran = RunCodec({"--elements", "60000000000"});
  EXPECT_EQ(ran.code, kExitFatal);
  EXPECT_THAT(ran.err, HasSubstr("choose fewer --elements"));
}

TEST(BenchCodec, PrintsText) {
  const Ran ran = RunCodec({"--elements=70000", "--warmup=0", "--rounds=1"});
  EXPECT_EQ(ran.code, kExitDone) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("onebit of 0.07066 million elements"));
  EXPECT_THAT(ran.out, HasSubstr("x smaller than FP32"));
}

// ---- Tests of the check itself ----

class BenchCodedTensorCheck : public testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Codecs, BenchCodedTensorCheck,
                         testing::Values("onebit", "topk:ratio=0.01", "onebit:decay=0.9",
                                         "dgc:ratio=0.01", "bf16", "int8-stochastic"));

TEST_P(BenchCodedTensorCheck, FindsLostContributions) {
  const absl::StatusOr<Transfer> transfer = ParseTransfer(GetParam());
  ASSERT_TRUE(transfer.ok()) << transfer.status();
  BenchCodedTensor tensor({.transfer = *transfer, .elements = 4096});
  for (int round = 0; round < 4; ++round) tensor.Round();
  EXPECT_TRUE(tensor.Check().ok()) << tensor.Check().status();
  const std::vector<float> sent(tensor.accumulator().begin(), tensor.accumulator().end());
  for (float& sum : tensor.accumulator()) sum *= 2;
  EXPECT_EQ(tensor.Check().status().code(), absl::StatusCode::kDataLoss);
  std::ranges::copy(sent, tensor.accumulator().begin());
  EXPECT_TRUE(tensor.Check().ok());
  tensor.accumulator()[77] = NAN;
  EXPECT_EQ(tensor.Check().status().code(), absl::StatusCode::kDataLoss);
}

TEST(BenchCodedTensor, NoticesOneElementThatMisses) {
  BenchCodedTensor tensor({.transfer = *ParseTransfer("onebit"), .elements = 100'000});
  for (int round = 0; round < 4; ++round) tensor.Round();
  tensor.accumulator()[70'001] += 0.001f;
  const absl::Status status = tensor.Check().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("element 70001"));
}

}  // namespace
}  // namespace syncline
