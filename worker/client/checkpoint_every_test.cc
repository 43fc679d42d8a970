#include "worker/client/checkpoint_every.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace syncline {
namespace {

TEST(CheckpointEvery, IsANumberOfStepsOrATime) {
  EXPECT_EQ(*ParseCheckpointEvery(""), CheckpointEvery{});
  EXPECT_EQ(*ParseCheckpointEvery("500 steps"), CheckpointEvery{.steps = 500});
  EXPECT_EQ(*ParseCheckpointEvery("1step"), CheckpointEvery{.steps = 1});
  EXPECT_EQ(*ParseCheckpointEvery("10 min"), CheckpointEvery{.time = absl::Minutes(10)});
  EXPECT_EQ(*ParseCheckpointEvery("10m"), CheckpointEvery{.time = absl::Minutes(10)});
  EXPECT_EQ(*ParseCheckpointEvery("2 h"), CheckpointEvery{.time = absl::Hours(2)});
  for (const char* wrong : {"500", "steps", "0 steps", "-1 steps", "1.5 h", "5 bananas",
                            "99999999999999999999 steps"}) {
    const auto parsed = ParseCheckpointEvery(wrong);
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument) << wrong;
    EXPECT_THAT(std::string(parsed.status().message()), testing::HasSubstr("'10 min'"));
  }
}

}  // namespace
}  // namespace syncline
