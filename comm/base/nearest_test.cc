#include "comm/base/nearest.h"

#include "gtest/gtest.h"

namespace syncline {
namespace {

TEST(Nearest, CountsInsertionsDeletionsSubstitutionsAndSwaps) {
  EXPECT_EQ(EditDistance("", ""), 0u);
  EXPECT_EQ(EditDistance("", "abc"), 3u);
  EXPECT_EQ(EditDistance("abc", ""), 3u);
  EXPECT_EQ(EditDistance("workers", "worker"), 1u);
  EXPECT_EQ(EditDistance("wrokers", "workers"), 1u);
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3u);
  EXPECT_EQ(EditDistance("AdamW", "adamw"), 0u);
  // Optimal string alignment: no edit inside a swapped pair.
  EXPECT_EQ(EditDistance("ca", "abc"), 3u);
}

TEST(Nearest, FindsTheNearestNameAndTheFirstOfEquals) {
  constexpr std::string_view kNames[] = {"servers", "workers", "log-dir"};
  EXPECT_EQ(NearestName("wrokers", kNames), "workers");
  EXPECT_EQ(NearestName("logdir", kNames), "log-dir");
  constexpr std::string_view kEquals[] = {"ab", "ac"};
  EXPECT_EQ(NearestName("a", kEquals), "ab");
}

TEST(Nearest, IsEmptyWithoutCandidates) { EXPECT_EQ(NearestName("anything", {}), ""); }

TEST(Nearest, SuggestsNothingThatIsFarAway) {
  constexpr std::string_view kModes[] = {"bsp", "ssp", "asp"};
  EXPECT_EQ(NearestName("spp", kModes), "ssp");
  EXPECT_EQ(NearestName("xyz", kModes), "");
  EXPECT_EQ(NearestName("zzp", kModes), "");
  EXPECT_EQ(NearestName("", kModes), "");
}

// The limit is a third of the longer name, rounded up: 3 of 9, 4 of 10.
TEST(Nearest, AllowsMoreForLongNames) {
  constexpr std::string_view kNames[] = {"abcdefghi"};
  EXPECT_EQ(NearestName("abcdefxyz", kNames), "abcdefghi");
  EXPECT_EQ(NearestName("abcdewxyz", kNames), "");
  EXPECT_EQ(NearestName("abcdefwxyz", kNames), "abcdefghi");
  EXPECT_EQ(NearestName("abcdevwxyz", kNames), "");
}

// A name that is near enough for its length may be farther away than a short name that is
// not.
TEST(Nearest, TakesTheNearestOfThoseThatAreNear) {
  constexpr std::string_view kNames[] = {"ab", "abcdefgh"};
  EXPECT_EQ(NearestName("abcde", kNames), "abcdefgh");
}

TEST(Nearest, IsASentenceOrNothing) {
  constexpr std::string_view kNames[] = {"servers", "workers"};
  EXPECT_EQ(DidYouMean("wrokers", kNames), "; did you mean 'workers'?");
  EXPECT_EQ(DidYouMean("nonsense", kNames), "");
}

}  // namespace
}  // namespace syncline
