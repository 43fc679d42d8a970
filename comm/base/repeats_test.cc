#include "comm/base/repeats.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

TEST(Repeats, ThePowersOfTwoOfEachKindAreSaid) {
  Repeats repeats;
  std::vector<uint64_t> said;
  for (int i = 0; i < 9; ++i) said.push_back(repeats.ToSay("a"));
  EXPECT_THAT(said, testing::ElementsAre(1, 2, 0, 4, 0, 0, 0, 8, 0));
  EXPECT_EQ(repeats.ToSay("b"), 1u);
}

TEST(Repeats, BeyondManyKindsTheRestIsOne) {
  Repeats repeats;
  for (size_t i = 0; i < Repeats::kMostKinds; ++i) {
    ASSERT_EQ(repeats.ToSay(absl::StrCat("kind ", i)), 1u);
  }
  EXPECT_EQ(repeats.ToSay("one more"), 1u);
  EXPECT_EQ(repeats.ToSay("another"), 2u);
  EXPECT_EQ(repeats.ToSay("kind 0"), 2u) << "what has its own count keeps it";
}

}  // namespace
}  // namespace syncline
