#include "cli/bench/pushpull.h"

#include <array>
#include <string>
#include <vector>

#include "cli/app.h"
#include "cli/bench/bench.h"
#include "cli/bench/worker.h"
#include "comm/base/exit_codes.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;

constexpr std::array<AddCommand, 1> kCommands = {AddBench};

// Returns the error of flags that are refused before anything starts.
std::string Refusal(std::vector<const char*> flags) {
  flags.insert(flags.begin(), {"syncline", "bench", "pushpull"});
  testing::internal::CaptureStderr();
  EXPECT_EQ(RunApp(flags, kCommands), kExitUsage);
  return testing::internal::GetCapturedStderr();
}

TEST(BenchPushPull, RefusesMoreTensorsThanItCanTimeAndSaysWhichSizeWorks) {
  EXPECT_THAT(Refusal({"--bytes=268435456", "--tensor-bytes=256"}),
              HasSubstr("1048576 tensors, more than 4096: give --tensor-bytes 65536"));
  EXPECT_THAT(Refusal({"--bytes=16388", "--tensor-bytes=4"}),
              HasSubstr("4097 tensors, more than 4096: give --tensor-bytes 8"));
  EXPECT_THAT(Refusal({"--tensor-bytes=6"}), HasSubstr("multiple of 4"));
}

TEST(BenchPushPull, RefusesWhatTheMachineHasNoMemoryFor) {
  EXPECT_THAT(Refusal({"--bytes=4000000000000000", "--tensor-bytes=4000000000000"}),
              testing::AllOf(HasSubstr("GB are left"), HasSubstr("at most --bytes ")));
}

TEST(BenchPushPull, RefusesNamesBeforeItStartsAnything) {
  EXPECT_THAT(Refusal({"--codec=tpk"}), HasSubstr("--codec: "));
  EXPECT_THAT(Refusal({"--codec=topk:ratio=2"}), HasSubstr("must be in [1e-06, 1]"));
  EXPECT_THAT(Refusal({"--optimizer=lamb"}), HasSubstr("sgd or adamw"));
  EXPECT_THAT(Refusal({"--dtype=fp8"}), HasSubstr("fp32, bf16 and fp16"));
}

TEST(BenchPushPull, SaysWhatItChecksOfEachCodec) {
  EXPECT_EQ(CheckedOf("int8:block_log2=10"), "weights");
  EXPECT_EQ(CheckedOf("topk:ratio=0.05"), "sums");
  EXPECT_EQ(CheckedOf("threshold"), "direction");
}

}  // namespace
}  // namespace syncline
