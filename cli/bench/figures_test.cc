#include "cli/bench/figures.h"

#include <gtest/gtest.h>

namespace syncline {
namespace {

TEST(Quantiles, InterpolateBetweenClosestRanks) {
  const nlohmann::json figures = Quantiles({5, 1, 3, 2, 4});
  EXPECT_DOUBLE_EQ(figures["median"], 3);
  EXPECT_DOUBLE_EQ(figures["p10"], 1.4);
  EXPECT_DOUBLE_EQ(figures["p90"], 4.6);
}

TEST(Quantiles, OfOneSampleAreThatSample) { EXPECT_DOUBLE_EQ(Quantiles({7})["p90"], 7); }

}  // namespace
}  // namespace syncline
