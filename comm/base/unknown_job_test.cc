#include "comm/base/unknown_job.h"

#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

std::string Said(std::string_view name, const std::vector<std::string_view>& names,
                 JobSet set = JobSet::kKnown) {
  const absl::Status status = UnknownJob(name, names, set);
  EXPECT_TRUE(absl::IsNotFound(status));
  return std::string(status.message());
}

TEST(UnknownJob, NamesTheNearestAndTheOthers) {
  EXPECT_EQ(Said("tset", {"bert", "test", "gpt"}),
            "there is no job 'tset'; did you mean 'test'? There are also 'bert', 'gpt'");
  EXPECT_EQ(Said("tset", {"test"}), "there is no job 'tset'; did you mean 'test'?");
  EXPECT_EQ(Said("other", {"a", "b"}), "there is no job 'other'; there are 'a', 'b'");
  EXPECT_EQ(Said("other", {"a"}), "there is no job 'other'; there is 'a'");
}

TEST(UnknownJob, SaysThatThereAreNone) {
  EXPECT_EQ(Said("a", {}), "there is no job 'a'; there are none");
  EXPECT_EQ(Said("a", {}, JobSet::kRunning), "no job 'a' is running; none is");
}

TEST(UnknownJob, ShowsTenNamesOfManyAndAllOfThemSafely) {
  std::vector<std::string> names;
  for (int i = 0; i < 12; ++i) names.push_back(absl::StrCat("long-name\x1b-", i));
  const std::string said = Said("x\n", {names.begin(), names.end()}, JobSet::kRunning);
  EXPECT_THAT(said, testing::StartsWith("no job 'x\\x0a' is running; there are "
                                        "'long-name\\x1b-0', "));
  EXPECT_THAT(said, testing::EndsWith("'long-name\\x1b-9' and 2 more"));
}

}  // namespace
}  // namespace syncline
