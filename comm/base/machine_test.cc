#include "comm/base/machine.h"

#include <unistd.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::AnyOf;

TEST(Machine, CountsAtLeastOneCoreAndNoMoreThanThereAre) {
  const MachineInfo machine = DescribeMachine();
  EXPECT_GE(machine.cores, 1);
  EXPECT_LE(machine.cores, sysconf(_SC_NPROCESSORS_CONF));
}

TEST(Machine, NamesAKnownInstructionSet) {
  EXPECT_THAT(DescribeMachine().isa,
              AnyOf("x86-64-v2", "x86-64-v3", "x86-64-v4", "arm64"));
}

TEST(Machine, MeasuresACopyBandwidthThatMemoryCanHave) {
  const double copy_gbs = MeasureMachine().copy_gbs;
  EXPECT_GT(copy_gbs, 0.1);
  EXPECT_LT(copy_gbs, 2000);
}

}  // namespace
}  // namespace syncline
