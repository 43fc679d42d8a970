#include "comm/base/isa.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdlib>
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

TEST(Isa, TheEnvironmentChoosesALowerLevel) {
  const char* wish = std::getenv("SYNCLINE_ISA");
  if (wish == nullptr) {
    EXPECT_EQ(ActiveIsa(), SupportedIsas().back());
  } else if (std::string_view(wish) == "v2") {
    EXPECT_EQ(ActiveIsa(), Isa::kBaseline);
  }
}

TEST(Kernel, RunsTheBody) {
  std::vector<float> x = {1, 2, 3};
  std::vector<float> y(3);
  Kernel<DoubleBody>::Run(x.size(), x.data(), y.data());
  EXPECT_EQ(y, (std::vector<float>{2, 4, 6}));
}

}  // namespace
}  // namespace syncline
