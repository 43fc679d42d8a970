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

TEST(Lanes, ResourcesAreReadTheSameWay) {
  EXPECT_THAT(ParseResources("# UCP context\n"
                             "#     component 1  :  tcp\n"
                             "#            md 0  :  component 0  self \n"
                             "#      resource 0  :  md 0  dev 0  flags -- self/memory0\n"
                             "#      resource 1  :  md 1  dev 1  flags a- tcp/lo\n"
                             "#      resource 2  :  md 1  dev 1  flags -- tcp/lo\n"
                             "# resource\n"),
              ElementsAre("self/memory0", "tcp/lo"));
  EXPECT_THAT(ParseResources(""), ElementsAre());
}

}  // namespace
}  // namespace syncline
