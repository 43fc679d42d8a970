#include "comm/base/isa.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <string_view>
#include <vector>

namespace syncline {
namespace {

SYNCLINE_KERNEL void DoubleBody(size_t n, const float* x, float* y) {
  for (size_t i = 0; i < n; ++i) y[i] = x[i] + x[i];
}

TEST(Isa, TheBaselineIsAlwaysSupported) {
  ASSERT_FALSE(SupportedIsas().empty());
  EXPECT_EQ(SupportedIsas().front(), Isa::kBaseline);
}

// ISAS in cmake/Syncline.cmake runs this with v2, with v3, and without the variable.
TEST(Isa, TheEnvironmentChoosesALowerLevelThanTheCpuHas) {
  const Isa best = SupportedIsas().back();
  const char* wish = std::getenv("SYNCLINE_ISA");
  const std::string_view level = wish == nullptr ? "" : wish;
  const Isa wished = level == "v2" ? Isa::kBaseline : level == "v3" ? Isa::kX86V3 : best;
  EXPECT_EQ(ActiveIsa(), std::min(wished, best));
}

TEST(Kernel, RunsTheBody) {
  std::vector<float> x = {1, 2, 3};
  std::vector<float> y(3);
  Kernel<DoubleBody>::Run(x.size(), x.data(), y.data());
  EXPECT_EQ(y, (std::vector<float>{2, 4, 6}));
}

}  // namespace
}  // namespace syncline
