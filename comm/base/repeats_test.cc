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
  for (int i = 0; i < 9; ++i) said.push_back(repeats.ToSay("a", ""));
  EXPECT_THAT(said, testing::ElementsAre(1, 2, 0, 4, 0, 0, 0, 8, 0));
  EXPECT_EQ(repeats.ToSay("b", ""), 1u);
}

TEST(Repeats, BeyondManyKindsTheRestOfEachGroupIsOne) {
  Repeats repeats;
  for (size_t i = 0; i < Repeats::kMaxKinds; ++i) {
    ASSERT_EQ(repeats.ToSay(absl::StrCat("kind ", i), "loud"), 1u);
  }
  EXPECT_EQ(repeats.ToSay("one more", "loud"), 1u);
  EXPECT_EQ(repeats.ToSay("another", "loud"), 2u);
  EXPECT_EQ(repeats.ToSay("of somebody else", "quiet"), 1u);
  EXPECT_EQ(repeats.ToSay("kind 0", "loud"), 2u) << "what has its own count keeps it";
}

}  // namespace
}  // namespace syncline
