#include "worker/client/memory_view.h"

#include <array>
#include <span>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(ConstMemoryView, ReadsFp32WhereItLies) {
  const std::vector<float> values = {1, 2, 3, 4};
  const ConstMemoryView view = std::span<const float>(values);
  EXPECT_EQ(view.size(), 4u);
  EXPECT_EQ(view.dtype(), DType::kF32);
  EXPECT_EQ(view.Read(1, 2, {}).data(), values.data() + 1);
  EXPECT_EQ(view.bytes().size(), 16u);
}

TEST(ConstMemoryView, WidensIntoScratch) {
  for (const DType dtype : {DType::kBf16, DType::kF16}) {
    const std::vector<float> values = {1, -2, 0.5f, 8};
    std::array<uint16_t, 4> narrow = {};
    Narrow(values, {.data = narrow.data(), .dtype = dtype});
    const ConstMemoryView view({.data = narrow.data(), .dtype = dtype}, narrow.size());
    std::vector<float> scratch(3, -1);
    const std::span<const float> read = view.Read(1, 2, scratch);
    EXPECT_EQ(read.data(), scratch.data());
    EXPECT_THAT(read, ElementsAre(-2, 0.5f));
    EXPECT_EQ(scratch[2], -1);
    EXPECT_EQ(view.Bytes(1, 2).size(), 4u);
  }
}

TEST(ConstMemoryView, MayBeEmpty) {
  EXPECT_TRUE(ConstMemoryView().empty());
  EXPECT_THAT(ConstMemoryView().Read(0, 0, {}), IsEmpty());
}

TEST(MemoryView, PartsAreWrittenRoundedOrAsTheyAre) {
  std::vector<uint16_t> memory(4);
  const MemoryView view({.data = memory.data(), .dtype = DType::kBf16}, memory.size());
  view.Part(1, 2).Write(std::vector<float>{1, 2.005f});
  std::vector<float> read(4);
  EXPECT_THAT(ConstMemoryView(view).Read(0, 4, read), ElementsAre(0, 1, 2, 0));
  const std::vector<uint16_t> bits = {Bf16FromFloat(5)};
  view.Part(3, 1).WriteBytes(std::as_bytes(std::span(bits)));
  EXPECT_THAT(ConstMemoryView(view).Read(3, 1, read), ElementsAre(5));
}

TEST(MemoryView, OfFp32IsTheMemoryItself) {
  std::vector<float> values = {1, 2, 3};
  const MemoryView view = values;
  view.Part(1, 2).AsFloats()[0] = 7;
  EXPECT_THAT(values, ElementsAre(1, 7, 3));
}

}  // namespace
}  // namespace syncline
