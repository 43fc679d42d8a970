#include "comm/collective/nccl/probe.h"

#include <gmock/gmock.h>

namespace syncline {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(NcclProbe, SaysWhichLibraryIsMissing) {
  const NcclProbe probe = ProbeNcclLibrary("libnccl_that_is_not_there.so.2");
  EXPECT_FALSE(probe.loaded);
  EXPECT_THAT(probe.message, HasSubstr("libnccl_that_is_not_there.so.2"));
}

TEST(NcclProbe, RefusesALibraryThatIsNotNccl) {
  const NcclProbe probe = ProbeNcclLibrary("libc.so.6");
  EXPECT_FALSE(probe.loaded);
  EXPECT_THAT(probe.message, HasSubstr("no NCCL library"));
}

TEST(NcclProbe, ReadsTheVersion) {
  const NcclProbe probe = ProbeNcclLibrary(SYNCLINE_TEST_FAKE_NCCL);
  EXPECT_TRUE(probe.loaded);
  EXPECT_EQ(probe.version, 22703);
  EXPECT_EQ(probe.message, "NCCL 2.27.3");
}

TEST(NcclProbe, AnswersWithOrWithoutNccl) {
  const NcclProbe probe = ProbeNccl();
  EXPECT_THAT(probe.message, StartsWith(probe.loaded ? "NCCL 2." : "no NCCL: "));
}

}  // namespace
}  // namespace syncline
