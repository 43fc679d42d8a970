#include "comm/base/machine.h"

#include <unistd.h>

#include <cstddef>
#include <cstring>

#include "comm/base/buffer.h"
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

TEST(Machine, MeasuresACopyBandwidthOnlyWhenAsked) {
  EXPECT_GT(MeasureMachine().copy_gbs, 0);
  EXPECT_EQ(DescribeMachine().copy_gbs, 0);
}

TEST(StreamCopy, CopiesEveryByteAndNoMore) {
  for (const size_t bytes : {size_t{0}, size_t{16}, size_t{4096}, size_t{65552}}) {
    Buffer from = Buffer::Allocate(bytes + 16);
    Buffer to = Buffer::Allocate(bytes + 16);
    for (size_t i = 0; i < from.size(); ++i)
      from.data()[i] = static_cast<std::byte>(i * 7);
    std::memset(to.data(), 0xee, to.size());
    StreamCopy(to.mutable_view().first(bytes), from.view().first(bytes));
    EXPECT_EQ(std::memcmp(to.data(), from.data(), bytes), 0) << bytes;
    for (size_t i = bytes; i < to.size(); ++i) EXPECT_EQ(to.data()[i], std::byte{0xee});
  }
}

}  // namespace
}  // namespace syncline
