#include "comm/job/checkpoint_every.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace syncline {
namespace {

TEST(CheckpointEvery, IsANumberOfStepsOrATime) {
  EXPECT_EQ(*ParseCheckpointEvery(""), CheckpointEvery{});
  EXPECT_EQ(*ParseCheckpointEvery("500 steps"), CheckpointEvery{.steps = 500});
  EXPECT_EQ(*ParseCheckpointEvery("1step"), CheckpointEvery{.steps = 1});
  EXPECT_EQ(*ParseCheckpointEvery("10 min"), CheckpointEvery{.seconds = 600});
  EXPECT_EQ(*ParseCheckpointEvery("10m"), CheckpointEvery{.seconds = 600});
  EXPECT_EQ(*ParseCheckpointEvery("2 h"), CheckpointEvery{.seconds = 7200});
  for (const char* wrong : {"500", "steps", "0 steps", "-1 steps", "1.5 h", "5 bananas",
                            "99999999999999999999 steps"}) {
    const auto parsed = ParseCheckpointEvery(wrong);
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument) << wrong;
    EXPECT_THAT(std::string(parsed.status().message()), testing::HasSubstr("'10 min'"));
  }
}

TEST(CheckpointEvery, IsWrittenAsItIsRead) {
  for (const char* text :
       {"", "500 steps", "1 steps", "10 min", "2 h", "90 s", "1234567 s"}) {
    EXPECT_EQ(FormatCheckpointEvery(*ParseCheckpointEvery(text)), text);
  }
  // Only a message can have this value; users cannot write it.
  EXPECT_EQ(FormatCheckpointEvery({.seconds = 1.5}), "1.5 s");
}

TEST(CheckpointEvery, IsInRangeUnlessNobodyCanMeanIt) {
  EXPECT_TRUE(CheckpointEvery{}.IsInRange());
  EXPECT_TRUE(CheckpointEvery{.steps = uint64_t{1} << 40}.IsInRange());
  EXPECT_FALSE((CheckpointEvery{.steps = (uint64_t{1} << 40) + 1}).IsInRange());
  EXPECT_FALSE(CheckpointEvery{.seconds = -1}.IsInRange());
  EXPECT_FALSE(CheckpointEvery{.seconds = std::nan("")}.IsInRange());
}

}  // namespace
}  // namespace syncline
