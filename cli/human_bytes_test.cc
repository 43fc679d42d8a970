#include "cli/human_bytes.h"

#include "gtest/gtest.h"

namespace syncline {
namespace {

TEST(HumanBytes, RoundsToOneDigit) {
  EXPECT_EQ(HumanBytes(0), "0 B");
  EXPECT_EQ(HumanBytes(999), "999 B");
  EXPECT_EQ(HumanBytes(1000), "1.0 kB");
  EXPECT_EQ(HumanBytes(999960), "1.0 MB");
  EXPECT_EQ(HumanBytes(2.5e12), "2.5 TB");
  EXPECT_EQ(HumanBytes(2.5e15), "2500.0 TB");
}

}  // namespace
}  // namespace syncline
