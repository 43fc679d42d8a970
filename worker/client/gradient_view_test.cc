#include "worker/client/gradient_view.h"

#include <array>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(GradientView, ReadsFp32WhereItLies) {
  const std::vector<float> values = {1, 2, 3, 4};
  const GradientView view = std::span<const float>(values);
  EXPECT_EQ(view.size(), 4u);
  EXPECT_EQ(view.dtype(), DType::kF32);
  EXPECT_EQ(view.Read(1, 2, {}).data(), values.data() + 1);
  EXPECT_EQ(view.bytes().size(), 16u);
}

TEST(GradientView, WidensIntoScratch) {
  for (const DType dtype : {DType::kBf16, DType::kF16}) {
    const std::vector<float> values = {1, -2, 0.5f, 8};
    std::array<uint16_t, 4> narrow = {};
    Narrow(values, {.data = narrow.data(), .dtype = dtype});
    const GradientView view({.data = narrow.data(), .dtype = dtype}, narrow.size());
    std::vector<float> scratch(3, -1);
    const std::span<const float> read = view.Read(1, 2, scratch);
    EXPECT_EQ(read.data(), scratch.data());
    EXPECT_THAT(read, ElementsAre(-2, 0.5f));
    EXPECT_EQ(scratch[2], -1);
    EXPECT_EQ(view.Bytes(1, 2).size(), 4u);
  }
}

TEST(GradientView, MayBeEmpty) {
  EXPECT_TRUE(GradientView().empty());
  EXPECT_THAT(GradientView().Read(0, 0, {}), IsEmpty());
}

}  // namespace
}  // namespace syncline
