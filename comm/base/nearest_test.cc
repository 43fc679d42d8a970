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

}  // namespace
}  // namespace syncline
