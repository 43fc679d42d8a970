#include "worker/client/waiting_lines.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::ElementsAre;

TEST(WaitingLines, OneThatStaysIsSaidLessAndLessOften) {
  WaitingLines lines;
  std::vector<int> said;
  for (int second = 0; second < 300; ++second) {
    const std::string since = second > 0 ? absl::StrCat(", ", second, " s") : "";
    if (lines.IsDue(absl::StrCat("waiting for server 1 of 2", since),
                    absl::Seconds(second))) {
      said.push_back(second);
    }
  }
  EXPECT_THAT(said, ElementsAre(0, 1, 3, 7, 15, 31, 63, 123, 183, 243));
}

TEST(WaitingLines, AnotherOneIsSaidAtOnce) {
  WaitingLines lines;
  EXPECT_TRUE(lines.IsDue("waiting for worker 2 of 4, 3 s", absl::Seconds(3)));
  EXPECT_FALSE(lines.IsDue("waiting for worker 2 of 4, 3 s", absl::Seconds(3)));
  EXPECT_TRUE(lines.IsDue("waiting for worker 3 of 4, 3 s", absl::Seconds(3)));
  EXPECT_TRUE(lines.IsDue("waiting for 3 servers, 3 s of 60 s", absl::Seconds(3)));
  EXPECT_FALSE(lines.IsDue("waiting for 3 servers, 4 s of 60 s", absl::Seconds(3)));
  EXPECT_TRUE(lines.IsDue("waiting for 2 servers, 4 s of 60 s", absl::Seconds(3)));
}

TEST(WaitingLines, WhatStaysAndHasWordsAfterItsSecondsIsTheSame) {
  WaitingLines lines;
  EXPECT_TRUE(lines.IsDue("waiting for server 1 of 1: start one", absl::ZeroDuration()));
  EXPECT_FALSE(lines.IsDue("waiting for server 1 of 1: start one", absl::Seconds(0.5)));
  EXPECT_TRUE(
      lines.IsDue("waiting for worker 2 of 4, 1 s (missing: rank 3)", absl::Seconds(1)));
  EXPECT_FALSE(lines.IsDue("waiting for worker 2 of 4, 19 s (missing: rank 3)",
                           absl::Seconds(1.5)));
}

}  // namespace
}  // namespace syncline
