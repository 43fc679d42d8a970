#include "comm/transport/ucx/lanes.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::ElementsAre;

constexpr char kInfo[] =
    "#\n"
    "# UCP endpoint 0x7f0c5c001000\n"
    "#               peer: vm:1234\n"
    "#                 lane[0]:  5:sysv/memory.0 md[3]  -> md[3]/sysv/sysdev[255] am "
    "am_bw#0\n"
    "#                 lane[1]: 11:rc_mlx5/mlx5_0:1.0 md[4] -> md[4]/ib/sysdev[0] "
    "rma_bw#0\n"
    "#                 lane[2]: 12:rc_mlx5/mlx5_0:1.1 md[4] -> md[4]/ib/sysdev[0] "
    "rma_bw#1\n"
    "#\n"
    "#                am_send: 0..<egr/short>..92..<egr/bcopy>..8256..<rndv>..(inf)\n";

TEST(Lanes, AreReadFromWhatUcxPrintsForHumans) {
  EXPECT_THAT(ParseLanes(kInfo), ElementsAre("sysv/memory", "rc_mlx5/mlx5_0:1"));
  EXPECT_THAT(ParseLanes(""), ElementsAre());
  EXPECT_THAT(ParseLanes("lane[x no end\nlane[]:"), ElementsAre(""));
}

}  // namespace
}  // namespace syncline
